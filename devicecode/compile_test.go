package devicecode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const okSource = `extern "C" __global__ void k() {}`

// loggedCXX makes the C++ compiler write a line for each image that it makes.
// lines counts them.
func loggedCXX(t *testing.T) (lines func() int) {
	t.Helper()
	dir := t.TempDir()
	log, script := filepath.Join(dir, "log"), filepath.Join(dir, "cxx")
	text := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *-shared*) echo run >>%s;; esac\nexec g++ \"$@\"\n", log)
	testerr.Check(t, os.WriteFile(script, []byte(text), 0o700))
	t.Setenv("CXX", script)
	return func() int {
		data, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("\n"))
	}
}

func compileOK(t *testing.T, source string, o Options) []byte {
	t.Helper()
	return testerr.Must(Compile(t.Context(), ArchEmu, "k.cu", []byte(source), o))(t)
}

// images lists the cache's files that hold images.
func images(t *testing.T, dir string) []string {
	t.Helper()
	return testerr.Must(filepath.Glob(filepath.Join(dir, "emu-*")))(t)
}

func TestCacheByContent(t *testing.T) {
	runs := loggedCXX(t)
	o := Options{CacheDir: t.TempDir(), IncludeDirs: []string{t.TempDir()}}
	header := filepath.Join(o.IncludeDirs[0], "mine.h")
	testerr.Check(t, os.WriteFile(header, []byte("#define MINE 1\n"), 0o600))
	const source = "#include \"mine.h\"\nextern \"C\" __global__ void k(int* p) { *p = MINE; }\n"
	first := compileOK(t, source, o)
	if again := compileOK(t, source, o); runs() != 1 || !bytes.Equal(first, again) {
		t.Errorf("the same source was compiled %d times", runs())
	}
	testerr.Check(t, os.WriteFile(header, []byte("#define MINE 2\n"), 0o600))
	if changed := compileOK(t, source, o); runs() != 2 || bytes.Equal(first, changed) {
		t.Errorf("after a header changed there were %d runs", runs())
	}
	flagged := o
	flagged.Flags = []string{"-O1"}
	if compileOK(t, source, flagged); runs() != 3 {
		t.Errorf("after a flag changed there were %d runs", runs())
	}
	left := testerr.Must(os.ReadDir(o.CacheDir))(t)
	kinds := map[string]int{}
	for _, f := range left {
		kind, _, _ := strings.Cut(f.Name(), "-")
		kinds[kind]++
	}
	delete(kinds, "manifest") // as many as did not depend on a header that is too new
	if diff := cmp.Diff(map[string]int{"emu": 3, "include": 1, "lock": 1}, kinds); diff != "" {
		t.Errorf("what the cache holds: %s", diff)
	}
}

// cachedHeader returns the path of the library's config.cuh in a cache.
func cachedHeader(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "include-*", "mscclgo", "config.cuh"))
	if err != nil || len(paths) != 1 {
		t.Fatal(paths, err)
	}
	return paths[0]
}

func TestCacheMendsDamage(t *testing.T) {
	runs := loggedCXX(t)
	o := Options{CacheDir: t.TempDir()}
	want := compileOK(t, okSource, o)
	path := images(t, o.CacheDir)[0]
	data := testerr.Must(os.ReadFile(path))(t)
	data[len(data)/2] ^= 1
	for _, damaged := range [][]byte{data, data[:100], {}} {
		before := runs()
		testerr.Check(t, os.WriteFile(path, damaged, 0o600))
		if got := compileOK(t, okSource, o); runs() != before+1 || !bytes.Equal(got, want) {
			t.Errorf("a damaged entry of %d bytes: %d runs", len(damaged), runs()-before)
		}
	}
	// A header of the library, altered in the cache.
	testerr.Check(t, os.WriteFile(cachedHeader(t, o.CacheDir), []byte("#error altered\n"), 0o600))
	compileOK(t, "#include <mscclgo/config.cuh>\n"+okSource, o)
}

// childVariable makes the test binary compile once in this cache folder.
const childVariable = "MSCCLGO_DEVICECODE_TEST_CACHE"

// TestOneCompilerForMany compiles one source in several processes and goroutines
// at once.
func TestOneCompilerForMany(t *testing.T) {
	if dir := os.Getenv(childVariable); dir != "" {
		compileOK(t, okSource, Options{CacheDir: dir})
		return
	}
	runs := loggedCXX(t)
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if _, err := Compile(t.Context(), ArchEmu, "k.cu", []byte(okSource), Options{CacheDir: dir}); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOneCompilerForMany$")
			cmd.Env = append(os.Environ(), childVariable+"="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	if runs() != 1 || len(images(t, dir)) != 1 {
		t.Errorf("%d runs left %v", runs(), images(t, dir))
	}
}

func TestCompilerMessages(t *testing.T) {
	o := Options{CacheDir: t.TempDir(), Defines: []string{"TWO=2", "FLAG"}}
	for what, c := range map[string]struct{ source, message string }{
		"a syntax error":           {"#include <cuda_fp16.h>\n#include <mscclgo/copy.cuh>\nextern \"C\" __global__ void k() {\n  int x = \n}\n", "dir/my kernel.cu:5:1: error: expected"},
		"a name":                   {"extern \"C\" __global__ void k(int* p) {\n  __shared__ int s[4];\n  *p = s[unknown];\n}\n", "dir/my kernel.cu:3:10: error: 'unknown' was not declared"},
		"an include":               {"\n#include <not/there.h>\n", "dir/my kernel.cu:2:10: fatal error: not/there.h"},
		"a launch":                 {"__global__ void k() {}\nvoid f() {\n  k<<<1, 2>>>();\n}\n", "dir/my kernel.cu:3: error: kernel<<<...>>> launches are host code"},
		"after a macro":            {"#define K(n) extern \"C\" __global__ void n() { \\\n  int i; }\nK(a) K(b)\nextern \"C\" __global__ void c() { wrong; }\n", "dir/my kernel.cu:4:24: error: 'wrong'"},
		"a define":                 {"#if TWO == 2 && defined(FLAG)\n#error both\n#endif\n", "dir/my kernel.cu:2:2: error: #error both"},
		"a link error":             {"__device__ int there();\nextern \"C\" __global__ void k(int* p) { *p = there(); }\n", "there()"},
		"a kernel's name":          {"\nextern \"C\" __global__ void füllen(int* p) {}\n", "dir/my kernel.cu:2: error: the name füllen has letters that are not ASCII"},
		"a kernel's escaped name":  {"extern \"C\" {\n__global__ void f\\u00fcllen(int* p) {}\n}\n", "dir/my kernel.cu:2: error: the name füllen has"},
		"an array's name":          {"extern \"C\" __global__ void k() {\n  extern __shared__ int größe[];\n}\n", "dir/my kernel.cu:2: error: the name größe has"},
		"a value for a shared one": {"\nextern \"C\" __global__ void k(int* p) { __shared__ int s[2] = {1, *p}; *p = s[0]; }\n", "dir/my kernel.cu:2: error: a __shared__ variable cannot have an initial value"},
	} {
		_, err := Compile(t.Context(), ArchEmu, "dir/my kernel.cu", []byte(c.source), o)
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if left := images(t, o.CacheDir); len(left) != 0 {
		t.Errorf("failures left %v", left)
	}
}

// TestLetters has names with letters that are not ASCII where CUDA takes them.
func TestLetters(t *testing.T) {
	const source = `struct Größe { int höhe; };
extern "C" __global__ void __launch_bounds__(sizeof(Größe) * 8) k(int* é, Größe größe) { __shared__ int wörter[2]; *é = größe.höhe + wörter[0] + ZÄHLER; }`
	kernels := described(t, ArchEmu, source, Options{CacheDir: t.TempDir(), Defines: []string{"ZÄHLER=1"}})
	if len(kernels) != 1 || kernels[0].String() != "k(int* é, Größe größe)" {
		t.Errorf("the kernels are %v", kernels)
	}
}

func TestCompileWrongUse(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	check := func(what string, kind mscclgo.Kind, arch, name string, o Options) {
		t.Helper()
		if _, err := Compile(t.Context(), arch, name, []byte(okSource), o); !errors.Is(err, kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("an unknown architecture", mscclgo.ErrInvalid, "gfx90a", "k.cu", o)
	check("a name of two lines", mscclgo.ErrInvalid, ArchEmu, "k\n.cu", o)
	for _, word := range []string{"", "a\x00b"} {
		for what, o := range map[string]Options{
			"macro": {Defines: []string{word}}, "folder": {IncludeDirs: []string{word}}, "flag": {Flags: []string{word}},
		} {
			for _, arch := range []string{ArchEmu, "sm_90"} {
				_, err := Compile(t.Context(), arch, "k.cu", []byte(okSource), o)
				if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), what) {
					t.Errorf("a %s %q for %s: %v", what, word, arch, err)
				}
			}
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	testerr.Check(t, os.WriteFile(file, nil, 0o600))
	check("a cache folder that is a file", mscclgo.ErrSystem, ArchEmu, "k.cu", Options{CacheDir: file})
	t.Setenv("CXX", "/nowhere/c++ -m64")
	if _, err := Load(t.Context(), nil, "k.cu", []byte(okSource), o); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a nil device: %v", err)
	}
	check("a compiler that is not there", mscclgo.ErrUnsupported, ArchEmu, "k.cu", o)
	t.Setenv("CXX", "")
	t.Setenv("PATH", t.TempDir())
	check("no compiler at all", mscclgo.ErrUnsupported, ArchEmu, "k.cu", o)
}

// TestByteOrderMark compiles what some editors save.
func TestByteOrderMark(t *testing.T) {
	if _, err := Compile(t.Context(), ArchEmu, "k.cu", []byte("\ufeff"+okSource), Options{CacheDir: t.TempDir()}); err != nil {
		t.Error(err)
	}
}

// stuckCXX makes the C++ compiler start a child and never end. child waits for it and
// returns its process id.
func stuckCXX(t *testing.T) (child func() int) {
	t.Helper()
	dir := t.TempDir()
	pidFile, script := filepath.Join(dir, "pid"), filepath.Join(dir, "cxx")
	text := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--version*) echo stuck; exit;; esac\nsleep 1000 &\necho $! >%[1]s.new\nmv %[1]s.new %[1]s\nwait\n", pidFile)
	testerr.Check(t, os.WriteFile(script, []byte(text), 0o700))
	t.Setenv("CXX", script)
	return func() int {
		await(t, "the compiler's child has started", func() bool { _, err := os.Stat(pidFile); return err == nil })
		data := testerr.Must(os.ReadFile(pidFile))(t)
		return testerr.Must(strconv.Atoi(strings.TrimSpace(string(data))))(t)
	}
}

// await waits up to 10 s.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 10 s not so: %s", what)
		}
	}
}

// TestCompileEndsWithContext has a compiler that never ends, with a child that
// does not either.
func TestCompileEndsWithContext(t *testing.T) {
	child := stuckCXX(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := Compile(ctx, ArchEmu, "k.cu", []byte(okSource), Options{CacheDir: t.TempDir()})
		done <- err
	}()
	pid := child()
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, mscclgo.ErrAborted) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Compile goes on after its context")
	}
	await(t, "the compiler's child has ended", func() bool { return !running(pid) })
}

// lockedCache returns an empty cache in which somebody compiles what has the key "key".
func lockedCache(t *testing.T) (c cache, unlock func()) {
	t.Helper()
	c, err := openCache(t.Context(), "test", t.TempDir())
	if err == nil {
		unlock, err = c.lock(t.Context(), "test", "key")
	}
	testerr.Check(t, err)
	return c, unlock
}

// TestLockIsGivenUp compiles what another, which is stopped, has begun to compile.
func TestLockIsGivenUp(t *testing.T) {
	c, unlock := lockedCache(t)
	defer unlock()
	if left := time.Until(c.until); left < time.Minute {
		t.Errorf("others are waited for only %v", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c.until = time.Now().Add(100 * time.Millisecond)
	build := func(context.Context) ([]byte, error) {
		if left := time.Until(c.until); left > 0 {
			t.Errorf("it is compiled %v before the other is given up", left)
		}
		return []byte("an image"), nil
	}
	for range 2 { // of which the second finds it in the cache
		image, err := c.image(ctx, "test", "key", build)
		if err != nil || string(image) != "an image" {
			t.Fatalf("%q, %v", image, err)
		}
		c.until = time.Now().Add(time.Hour)
	}
}

// running reports whether a process exists and is not a zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// TestLockOutlivesNoFork has a child, which was forked while its parent compiled, keep the parent's descriptors.
func TestLockOutlivesNoFork(t *testing.T) {
	c, unlock := lockedCache(t)
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, file := range files {
		if of, _ := os.Readlink(file); of == filepath.Join(c.dir, "lock") {
			fd, _ := strconv.Atoi(filepath.Base(file))
			kept, err := syscall.Dup(fd) // shares the description, as a child's descriptor does
			testerr.Check(t, err)
			defer syscall.Close(kept)
		}
	}
	unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	unlock = testerr.Must(c.lock(ctx, "test", "key"))(t)
	unlock()
}

// TestLockHonoursContext waits for a source that another one compiles.
func TestLockHonoursContext(t *testing.T) {
	c, unlock := lockedCache(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.lock(ctx, "test", "key"); !errors.Is(err, mscclgo.ErrTimeout) {
		t.Errorf("a lock that is held: %v", err)
	}
	unlock()
	unlock = testerr.Must(c.lock(t.Context(), "test", "key"))(t)
	unlock()
}
