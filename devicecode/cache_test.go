package devicecode

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const otherSource = `extern "C" __global__ void other() {}`

// TestCompileWithoutCache has folders in which even root can create nothing.
func TestCompileWithoutCache(t *testing.T) {
	want := compileOK(t, okSource, Options{CacheDir: t.TempDir()})
	for _, dir := range []string{"/proc/self", "/proc/self/none"} {
		if got := compileOK(t, okSource, Options{CacheDir: dir}); !bytes.Equal(got, want) {
			t.Errorf("with %s as the cache the image is another", dir)
		}
	}
	t.Setenv("MSCCLGO_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if got := compileOK(t, okSource, Options{}); !bytes.Equal(got, want) {
		t.Error("without a home the image is another")
	}
}

// TestCacheOfOthers checks that what another user may have written is not used.
func TestCacheOfOthers(t *testing.T) {
	runs := loggedCXX(t)
	o := Options{CacheDir: t.TempDir()}
	want := compileOK(t, okSource, o)
	path := images(t, o.CacheDir)[0]
	good := testerr.Must(os.ReadFile(path))(t)
	compileOK(t, otherSource, o)
	var other []byte
	for _, p := range images(t, o.CacheDir) {
		if p != path {
			other = testerr.Must(os.ReadFile(p))(t)
		}
	}
	write := func(data []byte) error {
		os.RemoveAll(path)
		return os.WriteFile(path, data, 0o600)
	}
	for what, alter := range map[string]func() error{
		"can be written by all": func() error { write(good); return os.Chmod(path, 0o666) },
		"is of another source":  func() error { return write(other) },
		"is a link":             func() error { write(good); os.Rename(path, path+".x"); return os.Symlink(path+".x", path) },
		"is a folder":           func() error { os.Remove(path); return os.Mkdir(path, 0o700) },
		"has a terabyte":        func() error { os.RemoveAll(path); write(nil); return os.Truncate(path, 1<<40) },
		"is a pipe":             func() error { os.Remove(path); return unix.Mkfifo(path, 0o600) },
		"is of another user":    func() error { write(good); return os.Chown(path, 65534, 65534) },
		"is beside a pipe as lock": func() error {
			os.Remove(path)
			os.Remove(o.CacheDir + "/lock")
			return unix.Mkfifo(o.CacheDir+"/lock", 0o600)
		},
	} {
		if what == "is of another user" && os.Geteuid() != 0 {
			continue // only root can give files away
		}
		err := alter()
		if what == "is of another user" && errors.Is(err, unix.EINVAL) {
			continue // a namespace in which there is no other user
		}
		if err != nil {
			t.Fatal(what, err)
		}
		before := runs()
		if got := compileOK(t, okSource, o); runs() != before+1 || !bytes.Equal(got, want) {
			t.Errorf("an image that %s: %d runs", what, runs()-before)
		}
	}
}

// TestHeadersOfOthers has a cache in which anybody may alter the headers.
func TestHeadersOfOthers(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	const source = "#include <mscclgo/config.cuh>\n" + okSource
	want := compileOK(t, source, o)
	header := cachedHeader(t, o.CacheDir)
	os.Remove(header)
	testerr.Check(t, unix.Mkfifo(header, 0o600))
	if got := compileOK(t, source, o); !bytes.Equal(got, want) {
		t.Error("with a pipe for a header the image is another")
	}
	open := Options{CacheDir: t.TempDir()}
	testerr.Check(t, os.Chmod(open.CacheDir, 0o777))
	runs := loggedCXX(t)
	first := compileOK(t, source, open)
	// Some compilers write the headers' folder into the image, which is another one here.
	if again := compileOK(t, source, open); runs() != 1 || !bytes.Equal(again, first) {
		t.Errorf("in a folder of all: %d runs", runs())
	}
	if left, err := filepath.Glob(open.CacheDir + "/include-*"); err != nil || left != nil {
		t.Errorf("the headers are where all can alter them: %v, %v", left, err)
	}
}

// TestCompilerOfAKilledProcess checks that nothing is left of a process that is killed
// while it compiles.
func TestCompilerOfAKilledProcess(t *testing.T) {
	child, o, temporary := stuckCXX(t), Options{CacheDir: t.TempDir()}, t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestOneCompilerForMany$")
	cmd.Env = append(os.Environ(), childVariable+"="+o.CacheDir, "TMPDIR="+temporary)
	testerr.Check(t, cmd.Start())
	pid := child()
	cmd.Process.Kill()
	cmd.Wait()
	await(t, "the compiler's child has ended", func() bool { return !running(pid) })
	await(t, "the temporary folder is gone", func() bool {
		left, err := os.ReadDir(temporary)
		return err == nil && len(left) == 0
	})
	t.Setenv("CXX", "")
	compileOK(t, okSource, o)
}

// TestHeldCommand has a process be killed, as it seems to the command, before the watch knows
// of that: the command never runs.
func TestHeldCommand(t *testing.T) {
	w := workspace{op: "test"}
	defer w.close()
	dir, err := w.dir()
	if err != nil || w.watch == nil {
		t.Skipf("there is no watch here: %v", err)
	}
	for _, runs := range []bool{true, false} {
		file := filepath.Join(dir, fmt.Sprint(runs))
		cmd := exec.Command("touch", file)
		begin, err := w.hold(cmd)
		testerr.Check(t, err)
		testerr.Check(t, cmd.Start())
		begin(runs)
		err = cmd.Wait()
		if _, missing := os.Stat(file); runs != (err == nil) || runs != (missing == nil) {
			t.Errorf("runs = %v: %v, %v", runs, err, missing)
		}
	}
}

// TestSweep checks that files of processes that were killed while they wrote are removed.
func TestSweep(t *testing.T) {
	c := testerr.Must(openCache(t.Context(), "test", t.TempDir()))(t)
	old, fresh := filepath.Join(c.dir, newPrefix+"1"), filepath.Join(c.dir, newPrefix+"2")
	for _, path := range []string{old, fresh} {
		testerr.Check(t, os.WriteFile(path, nil, 0o600))
	}
	hours := time.Now().Add(-3 * time.Hour)
	testerr.Check(t, os.Chtimes(old, hours, hours))
	testerr.Check(t, c.write(filepath.Join(c.dir, "file"), nil))
	if left, _ := os.ReadDir(c.dir); len(left) != 2 {
		t.Errorf("the folder holds %v", left)
	}
}
