package main

import (
	"os"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestPrecompile(t *testing.T) {
	cache := t.TempDir() + "/cache"
	t.Setenv("MSCCLGO_CACHE", cache)
	for range 2 { // the second finds all there
		code, stdout, stderr := try("precompile", "-arch", "emu", "-n", "2", "scatter")
		if code != exitOK || stdout != "emu: 5 files of kernels are in the cache\n" || stderr != "" {
			t.Fatalf("code %d, %q, %q", code, stdout, stderr)
		}
	}
	// As root fills it for all.
	info, err := os.Stat(cache)
	if err != nil || info.Mode().Perm()&0o055 != 0o055 {
		t.Errorf("the folder is %v, %v", info, err)
	}
	files := testerr.Must(os.ReadDir(cache))(t)
	images := 0
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "emu-") {
			continue
		}
		images++
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s is %v, %v", f.Name(), info, err)
		}
	}
	if images != 5 {
		t.Errorf("%d images, want 5", images)
	}
}

func TestPrecompileRefuses(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("MSCCLGO_CACHE", cache)
	for _, c := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"precompile -arch emu -n two", exitUsage, `"two"`},
		{"precompile -arch emu -n 0", exitFailed, "no group of 0 ranks"},
		{"precompile -arch emu -d f33", exitUsage, "f33"},
		{"precompile -arch emu -o mean", exitUsage, "mean"},
		{"precompile -arch emu all-reduced", exitUsage, "all-reduced"},
		{"precompile -arch tpu scatter", exitFailed, `unknown architecture "tpu"`},
	} {
		code, stdout, stderr := try(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("the cache has %v, %v", left, err)
	}
}

// TestPrecompileKeepsNothing has a cache that cannot be written.
func TestPrecompileKeepsNothing(t *testing.T) {
	set := func(value string) func(*testing.T) { return func(t *testing.T) { t.Setenv("MSCCLGO_CACHE", value) } }
	for name, spoil := range map[string]func(*testing.T){
		"/proc has no folders":    set("/proc/none"),
		"/proc/self has no files": set("/proc/self"),
		"no home": func(t *testing.T) {
			for _, variable := range []string{"MSCCLGO_CACHE", "XDG_CACHE_HOME", "HOME"} {
				t.Setenv(variable, "")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			spoil(t)
			code, stdout, stderr := try("precompile", "-arch", "emu", "-n", "2", "scatter")
			if code != exitFailed || strings.Contains(stdout, "are in the cache") || !strings.Contains(stderr, "MSCCLGO_CACHE") {
				t.Errorf("code %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}
