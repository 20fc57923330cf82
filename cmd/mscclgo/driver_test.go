package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// library puts a shared library of C, or an empty file, before the system's libraries, for the processes that the
// test starts.
func library(t *testing.T, name, source string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, name)
	if source == "" {
		testerr.Check(t, os.WriteFile(file, nil, 0o700))
	} else {
		c := exec.Command("gcc", "-shared", "-fPIC", "-o", file, "-x", "c", "-")
		c.Stdin = strings.NewReader(source)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}

// cuInitFails is a driver whose cuInit returns a code, with texts for all codes.
const cuInitFails = `
int cuInit(unsigned flags) { return %d; }
int cuGetErrorName(int code, const char** name) { return *name = "CUDA_ERROR_FAKE", 0; }
int cuGetErrorString(int code, const char** text) { return *text = "what the driver says", 0; }
`

// TestBrokenDriver has a driver that does not work, which must not become a run on emulated devices. A driver
// that finds no GPU is as none.
func TestBrokenDriver(t *testing.T) {
	for name, c := range map[string]struct{ source, says string }{
		"another version": {fmt.Sprintf(cuInitFails, 803), "(803): what the driver says; libcuda.so.1 and the kernel module are of different versions: reboot"},
		"a stub":          {fmt.Sprintf(cuInitFails, 34), "(34): what the driver says; this libcuda.so.1 is a stub"},
		"an empty file":   {"", "file too short"},
		"no GPU":          {fmt.Sprintf(cuInitFails, 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			library(t, "libcuda.so.1", c.source)
			stdout, stderr, err := mscclgoOn(t, "", append(append([]string{"bench"}, small...), "allreduce")...)
			if c.says == "" {
				if err != nil || !strings.Contains(stdout, "emu:0") {
					t.Errorf("%v\n%s%s", err, stdout, stderr)
				}
				return
			}
			if err == nil || strings.Contains(stdout, "emu:0") || !strings.Contains(stderr, c.says) || !strings.Contains(stderr, "MSCCLGO_DEVICE=emu") {
				t.Errorf("bench: %v\n%s%s", err, stdout, stderr)
			}
			if stdout, stderr, err := mscclgoOn(t, "emu", append(append([]string{"bench"}, small[2:]...), "broadcast")...); err != nil {
				t.Errorf("on emulated devices, which need no driver: %v\n%s%s", err, stdout, stderr)
			}
			if report, _, _ := mscclgoOn(t, "", "doctor"); !strings.Contains(report, c.says) {
				t.Errorf("doctor lacks %q:\n%s", c.says, report)
			}
		})
	}
}

// TestBrokenVerbs has a library of InfiniBand that is no library: ranks that may use it do not go over Ethernet.
func TestBrokenVerbs(t *testing.T) {
	library(t, "libibverbs.so.1", "")
	t.Setenv("MSCCLGO_TRANSPORTS", "InfiniBand,Ethernet")
	stdout, stderr, err := mscclgoOn(t, "emu", append(append([]string{"bench"}, small...), "allreduce")...)
	if err == nil || !strings.Contains(stderr, "InfiniBand is there and does not work") || !strings.Contains(stderr, "file too short") {
		t.Errorf("%v\n%s%s", err, stdout, stderr)
	}
}
