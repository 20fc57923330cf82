package capi

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestInstalled builds an example with what scripts/install has installed, as pkg-config and CMake find
// it in a folder that has been moved, and runs it by the command installed there.
func TestInstalled(t *testing.T) {
	library(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("scripts/install needs Go, which lists the modules whose licenses it installs:", err)
	}
	dir := t.TempDir()
	do := func(env []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	do(nil, "../scripts/install", folder, filepath.Join(dir, "staged"))
	prefix := filepath.Join(dir, "a prefix")
	testerr.Check(t, os.Rename(filepath.Join(dir, "staged"), prefix))
	command, lib := filepath.Join(prefix, "bin/mscclgo"), filepath.Join(prefix, "lib")
	if got := do(nil, command, "--version"); !strings.HasPrefix(got, "mscclgo "+mscclgo.Version+" ") {
		t.Errorf("the command's version is %q", got)
	}
	version, _, _ := strings.Cut(mscclgo.Version[1:], "-")
	minor := version[:strings.LastIndex(version, ".")]
	examples := testerr.Must(filepath.Abs("examples"))(t)
	right := func(program string, env ...string) {
		t.Helper()
		lines := strings.Split(do(append(env, "MSCCLGO_DEVICE=emu"), command, "run", "-n", "2", "-prefix=false", program), "\n")
		slices.Sort(lines)
		testcmp.Equal(t, "output", lines, []string{"rank 0 of 2: all 1000 sums are right", "rank 1 of 2: all 1000 sums are right"})
	}

	t.Run("pkg-config", func(t *testing.T) {
		if _, err := exec.LookPath("pkg-config"); err != nil {
			netlab.Lacks(t, "pkg-config", "there is no pkg-config")
		}
		paths := []string{"PKG_CONFIG_PATH=" + filepath.Join(lib, "pkgconfig")}
		testcmp.Equal(t, "version", do(paths, "pkg-config", "--modversion", "mscclgo"), version)
		program := filepath.Join(dir, "program")
		do(paths, "sh", "-c", `eval gcc -o "$2" "$1" $(pkg-config --cflags --libs mscclgo)`, "sh", filepath.Join(examples, "allreduce.c"), program)
		needed := do(nil, "readelf", "-d", program)
		if soname := "[libmscclgo.so." + minor + "]"; !strings.Contains(needed, soname) {
			t.Errorf("the program does not need %s:\n%s", soname, needed)
		}
		right(program, "LD_LIBRARY_PATH="+lib)
	})
	t.Run("CMake", func(t *testing.T) {
		if _, err := exec.LookPath("cmake"); err != nil {
			netlab.Lacks(t, "cmake", "there is no cmake")
		}
		built := filepath.Join(dir, "cmake")
		configure := []string{"-S", "testdata/cmake", "-B", built, "-DEXAMPLES=" + examples, "-DCMAKE_PREFIX_PATH=" + prefix}
		do(nil, "cmake", append(configure, "-DVERSION="+minor)...)
		do(nil, "cmake", "--build", built)
		right(filepath.Join(built, "allreduce"))
		out, err := exec.Command("cmake", append(configure, "-DVERSION=99.0")...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "version: "+version) {
			t.Errorf("of another version: %v\n%s", err, out)
		}
	})
	do(nil, "../scripts/install", "--remove", prefix)
	if left := do(nil, "find", prefix, "-type", "f"); left != "" {
		t.Errorf("left after the removal: %s", left)
	}
}
