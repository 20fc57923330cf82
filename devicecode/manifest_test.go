package devicecode

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// countedCXX makes the C++ compiler count its runs, also as a preprocessor.
func countedCXX(t *testing.T) (runs func() int) {
	t.Helper()
	dir := t.TempDir()
	log, script := filepath.Join(dir, "log"), filepath.Join(dir, "cxx")
	testerr.Check(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\necho run >>%s\nexec g++ \"$@\"\n", log), 0o700))
	t.Setenv("CXX", script)
	return func() int {
		data, _ := os.ReadFile(log)
		return bytes.Count(data, []byte("\n"))
	}
}

// writeOld writes a file that seems to be an hour old, since files that are as new as the
// compilation are not relied upon.
func writeOld(t *testing.T, path, text string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	testerr.Check(t, os.MkdirAll(filepath.Dir(path), 0o700))
	testerr.Check(t, os.WriteFile(path, []byte(text), 0o600))
	testerr.Check(t, os.Chtimes(path, then, then))
}

// TestRecall finds an image without running the compiler, as long as all that it depends
// on is the same.
func TestRecall(t *testing.T) {
	runs := countedCXX(t)
	first, second, system := t.TempDir(), t.TempDir(), t.TempDir()
	writeOld(t, second+"/mine.h", "#include <theirs.h>\n#define MINE 1\n", time.Hour)
	writeOld(t, system+"/theirs.h", "#define THEIRS 1\n", time.Hour)
	o := Options{CacheDir: t.TempDir(), IncludeDirs: []string{first, second}, Flags: []string{"-isystem", system}}
	const source = `
#include "mine.h"
#include <mscclgo/config.cuh>
extern "C" __global__ void k(int* out) { *out = 1000 * MINE + THEIRS; }
`
	// compile returns the image, and whether a compiler ran for it.
	compile := func() ([]byte, bool) {
		t.Helper()
		before := runs()
		image := compileOK(t, source, o)
		return image, runs() > before
	}
	original, _ := compile()
	recalled := func(what string) {
		t.Helper()
		if image, ran := compile(); ran || !bytes.Equal(image, original) {
			t.Errorf("%s: a compiler ran: %v; the image is another: %v", what, ran, !bytes.Equal(image, original))
		}
	}
	changed := func(what string) {
		t.Helper()
		if image, ran := compile(); !ran || bytes.Equal(image, original) {
			t.Errorf("%s: a compiler ran: %v; the image is another: %v", what, ran, !bytes.Equal(image, original))
		}
		if _, ran := compile(); ran {
			t.Errorf("%s: a compiler ran twice", what)
		}
	}
	recalled("nothing has changed")

	writeOld(t, second+"/mine.h", "#include <theirs.h>\n#define MINE 2\n", time.Hour) // as long as before, and as old
	changed("an own header")
	writeOld(t, second+"/mine.h", "#include <theirs.h>\n#define MINE 1\n", time.Minute)
	recalled("an own header is as it was")

	writeOld(t, system+"/theirs.h", "#define THEIRS 2\n", time.Minute)
	changed("a header of the system")
	writeOld(t, system+"/theirs.h", "#define THEIRS 1\n", time.Hour)
	if image, _ := compile(); !bytes.Equal(image, original) {
		t.Error("the first header of the system leads to another image")
	}

	writeOld(t, first+"/mine.h", "#include <theirs.h>\n#define MINE 3\n", time.Hour)
	changed("a header that is found first")
	os.Remove(first + "/mine.h")
	recalled("it is gone")
	writeOld(t, first+"/theirs.h", "#define THEIRS 3\n", time.Hour)
	changed("a header in place of one of the system")
	os.Remove(first + "/theirs.h")
	writeOld(t, first+"/mscclgo/config.cuh", "#include_next <mscclgo/config.cuh>\n#undef MINE\n#define MINE 4\n", time.Hour)
	changed("a header in place of one of the library")
	os.RemoveAll(first + "/mscclgo")
	recalled("all as at first")

	o.Defines = []string{"OTHER"}
	if _, ran := compile(); !ran {
		t.Error("another option, and no compiler ran")
	}
	o.Defines = nil

	// Another compiler, and none.
	script := os.Getenv("CXX")
	writeOld(t, script, "#!/bin/sh\necho run >>"+filepath.Join(filepath.Dir(script), "log")+"\nexec g++ -DX \"$@\"\n", time.Hour)
	if _, ran := compile(); !ran {
		t.Error("another compiler, which did not run")
	}
	t.Setenv("CXX", "/mscclgo-no-such-compiler")
	t.Setenv("HOME", "")
	os.Remove(system + "/theirs.h") // is not needed either
	recalled("no compiler")
	writeOld(t, second+"/mine.h", "#define MINE 5\n", time.Hour)
	_, err := Compile(t.Context(), ArchEmu, "k.cu", []byte(source), o)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "C++ compiler")
}

// TestRecallNothing has sources that may mean something else the next time.
func TestRecallNothing(t *testing.T) {
	runs := countedCXX(t)
	dir := t.TempDir()
	o := Options{CacheDir: t.TempDir(), IncludeDirs: []string{dir}}
	for what, source := range map[string]string{
		"may include":   "#if __has_include(\"later.h\")\n#include \"later.h\"\n#endif\n" + okSource,
		"is new":        "#include \"new.h\"\n" + okSource,
		"has the hour":  "const char* now = __TIME__;\n" + okSource,
		"includes that": "#include \"hour.h\"\n" + okSource,
	} {
		writeOld(t, dir+"/hour.h", "#define HOUR __TIME__\n", time.Hour)
		writeOld(t, dir+"/new.h", "", -time.Hour)
		compileOK(t, source, o)
		before := runs()
		compileOK(t, source, o)
		if runs() == before {
			t.Errorf("%s: no compiler ran", what)
		}
	}
}

// TestRecallOwnFlags has a version of the package that compiles with another flag.
func TestRecallOwnFlags(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	first := compileOK(t, okSource, o)
	had := compileFlags
	defer func() { compileFlags = had }()
	compileFlags = append(slices.Clone(had), "-O0")
	if second := compileOK(t, okSource, o); bytes.Equal(first, second) {
		t.Error("the image of other flags was taken")
	}
}

// TestRecallWritesNothing compares the cache before and after.
func TestRecallWritesNothing(t *testing.T) {
	dir := t.TempDir()
	compileOK(t, okSource, Options{CacheDir: dir})
	state := func() map[string]time.Time {
		files := map[string]time.Time{}
		filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			testerr.Check(t, err)
			files[path] = info.ModTime()
			return nil
		})
		return files
	}
	before := state()
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary+"/none")
	t.Setenv("MSCCLGO_CACHE", dir)
	t.Setenv("HOME", "")
	compileOK(t, okSource, Options{})
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Error(diff)
	}
}

// TestManifestDamaged has manifests that are not what was written.
func TestManifestDamaged(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	want := compileOK(t, okSource, o)
	paths, err := filepath.Glob(o.CacheDir + "/manifest-*")
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	good := testerr.Must(os.ReadFile(paths[0]))(t)
	for _, bad := range [][]byte{nil, good[:len(good)/2], append(bytes.Clone(good), 0), bytes.ReplaceAll(good, []byte("emu"), []byte("emv"))} {
		testerr.Check(t, os.WriteFile(paths[0], bad, 0o600))
		if got := compileOK(t, okSource, o); !bytes.Equal(got, want) {
			t.Error("the image is another")
		}
	}
}

func FuzzDecodeManifest(f *testing.F) {
	some := manifest{[]manifestEntry{{
		compiler: "g++", image: "emu-1", own: []stamp{{"/a.h", "1"}}, system: []stamp{{"/b.h", "2"}}, hiding: []string{"/c.h"},
	}}}
	f.Add(some.encode("key"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeManifest("key", data)
		if err == nil && !bytes.Equal(m.encode("key"), data) {
			t.Fatal("what was read is written differently")
		}
	})
}

// BenchmarkLoadCached loads a module whose image is in the cache.
func BenchmarkLoadCached(b *testing.B) {
	device := testerr.Must(gpu.Open("emu:0"))(b)
	defer device.Close()
	o := Options{CacheDir: b.TempDir()}
	testerr.Must(Compile(b.Context(), ArchEmu, "check_test.cu", checkedSource, o))(b)
	for b.Loop() {
		module := testerr.Must(Load(b.Context(), device, "check_test.cu", checkedSource, o))(b)
		module.Close()
	}
}
