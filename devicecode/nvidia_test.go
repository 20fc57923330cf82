package devicecode

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// withCUDATool chooses nvrtc or nvcc for a test, or skips it where that is not
// installed.
func withCUDATool(t *testing.T, which string) Options {
	t.Helper()
	t.Setenv("MSCCLGO_CUDA_COMPILER", which)
	if _, err := findCUDATool("test"); err != nil {
		t.Skip(err)
	}
	return Options{CacheDir: t.TempDir()}
}

func forEachCUDATool(t *testing.T, test func(t *testing.T, o Options)) {
	for _, which := range []string{"nvrtc", "nvcc"} {
		t.Run(which, func(t *testing.T) { test(t, withCUDATool(t, which)) })
	}
}

func isCubin(image []byte) bool { return bytes.HasPrefix(image, []byte("\x7fELF")) }

//go:embed check_test.cu
var checkedSource []byte

// TestCUDAChecks compiles kernels with the checks and without, which leaves nothing of
// them.
func TestCUDAChecks(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		for _, checked := range []bool{false, true} {
			o.Check = checked
			image := testerr.Must(Compile(t.Context(), "sm_90", "check_test.cu", checkedSource, o))(t)
			if got := bytes.Contains(image, []byte(", whose buffer has ")); got != checked {
				t.Errorf("with Check %v the image has the texts: %v", checked, got)
			}
		}
	})
}

func TestCUDACompile(t *testing.T) {
	const source = `
#include <mscclgo/config.cuh>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "mine.h"
extern "C" __global__ void kernel(__half* p, uint64_t n) {
  if (threadIdx.x < n) p[threadIdx.x] = __float2half(float(MINE + GIVEN));
}
`
	forEachCUDATool(t, func(t *testing.T, o Options) {
		folder := t.TempDir()
		mine := filepath.Join(folder, "mine.h")
		testerr.Check(t, os.WriteFile(mine, []byte("#define MINE 1"), 0o600))
		o.IncludeDirs, o.Defines = []string{folder}, []string{"GIVEN=2"}
		first, err := Compile(t.Context(), "sm_90", "kernel.cu", []byte(source), o)
		testerr.Check(t, err)
		if !isCubin(first) || !bytes.Contains(first, []byte("kernel")) {
			t.Errorf("the image of %d bytes is no cubin with the kernel", len(first))
		}
		// The cache is about as fast as reading the file.
		start := time.Now()
		again, err := Compile(t.Context(), "sm_90", "kernel.cu", []byte(source), o)
		if err != nil || !bytes.Equal(first, again) {
			t.Errorf("compiled again: %v, same image %v", err, bytes.Equal(first, again))
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("an image in the cache took %v", took)
		}
		// A changed header is noticed.
		testerr.Check(t, os.WriteFile(mine, []byte("#define MINE 7"), 0o600))
		changed, err := Compile(t.Context(), "sm_90", "kernel.cu", []byte(source), o)
		if err != nil || bytes.Equal(first, changed) {
			t.Errorf("compiled with another header: %v, same image %v", err, bytes.Equal(first, changed))
		}
	})
}

func TestCUDAMessages(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		source := []byte("extern \"C\" __global__ void k() {\n  int x = nothing;\n}\n")
		_, err := Compile(t.Context(), "sm_90", "dir/wrong.cu", source, o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "dir/wrong.cu(2)", "nothing", "sm_90")

		_, err = Compile(t.Context(), "sm_10", "old.cu", []byte("// no code\n"), o)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "old.cu", "sm_10")

		_, err = Compile(t.Context(), "sm_90", "zero.cu", []byte("int a;\x00"), o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "zero byte")

		_, err = Compile(t.Context(), "sm_90", "absent.cu", []byte("#include \"absent.h\"\n"), o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "absent.cu", "absent.h")

		flagged := o
		flagged.Flags = []string{"--no-such-flag"}
		_, err = Compile(t.Context(), "sm_90", "flag.cu", []byte("// no code\n"), flagged)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "flag.cu", "no-such-flag")

		left := testerr.Must(os.ReadDir(o.CacheDir))(t)
		for _, entry := range left {
			// The lock is the folder's, and stays.
			if !strings.HasPrefix(entry.Name(), "include-") && entry.Name() != "lock" {
				t.Errorf("failed compilations left %s in the cache", entry.Name())
			}
		}
	})
	for _, arch := range []string{"sm_", "sm_9x", "sm_100000"} {
		_, err := Compile(t.Context(), arch, "k.cu", nil, Options{CacheDir: t.TempDir()})
		testerr.Expect(t, err, mscclgo.ErrInvalid, arch)
	}
}

// TestNVRTCUnknownArchitecture gets PTX, which a newer driver can compile.
func TestNVRTCUnknownArchitecture(t *testing.T) {
	o := withCUDATool(t, "nvrtc")
	image := testerr.Must(Compile(t.Context(), "sm_999", "k.cu", []byte("extern \"C\" __global__ void k() {}"), o))(t)
	if !bytes.Contains(image, []byte(".visible .entry k")) {
		t.Errorf("the image is not PTX: %.100q", image)
	}
}

// TestCUDAManyRanks has a loop use an address that does not change in it: the compiler must
// not load it for ranks whose addresses are in the handle, as there is nothing to load then.
func TestCUDAManyRanks(t *testing.T) {
	const source = `#include <mscclgo/group.cuh>
extern "C" __global__ void invariant(mscclgo::GroupHandle group, uint64_t* out, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    if (out[i] != 0) out[i] = reinterpret_cast<uint64_t>(group.window(group.rank));
}
`
	nvcc, err := exec.LookPath(filepath.Join(os.Getenv("CUDA_HOME"), "bin", "nvcc"))
	if err != nil {
		t.Skip("CUDA_HOME has no nvcc:", err)
	}
	file := filepath.Join(t.TempDir(), "invariant.cu")
	testerr.Check(t, os.WriteFile(file, []byte(source), 0o600))
	out, err := exec.Command(nvcc, "-ptx", "-arch=sm_90", "-std=c++17", "-I", "include", "-o", file+".ptx", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ptx := testerr.Must(os.ReadFile(file + ".ptx"))(t)
	// The rank is less than 72, or greater than 71.
	compared := regexp.MustCompile(`setp\.[lg]t\.u32.*, 7[12];`).FindIndex(ptx)
	if load := bytes.Index(ptx, []byte("ld.global.nc")); load < 0 || compared == nil || load < compared[0] {
		t.Errorf("the first load is at %d, and the first comparison with %d at %d:\n%s", load, layout.RanksByValue, compared, ptx)
	}
}

// TestNVRTCStartsDriver finds what the driver reads in its environment when NVRTC
// is the first to start it: it runs the test above with a driver that tells.
func TestNVRTCStartsDriver(t *testing.T) {
	withCUDATool(t, "nvrtc")
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler to build a driver with:", err)
	}
	const driver = `
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
  printf("cuInit: loading %s, %s queues\n", getenv("CUDA_MODULE_LOADING"), getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
  return fflush(stdout), 100;
}`
	dir := t.TempDir()
	source := filepath.Join(dir, "driver.c")
	testerr.Check(t, os.WriteFile(source, []byte(driver), 0o600))
	if out, err := exec.Command(compiler, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNVRTCUnknownArchitecture$")
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CUDA_MODULE_LOADING=") || strings.HasPrefix(v, "CUDA_DEVICE_MAX_CONNECTIONS=")
	})
	cmd.Env = append(environment, "LD_LIBRARY_PATH="+dir+string(filepath.ListSeparator)+os.Getenv("LD_LIBRARY_PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("cuInit:")) {
		t.Skip("this NVRTC does not start the driver")
	}
	if !bytes.Contains(out, []byte("cuInit: loading EAGER, 32 queues")) {
		t.Errorf("NVRTC started the driver with\n%s", out)
	}
}

func TestCUDACancel(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		// Takes the compiler far longer than the deadline.
		source := "extern \"C\" __global__ void k(float* p) {\n  float x = *p;\n" +
			strings.Repeat("  x = sinf(x) * powf(x, cosf(x));\n", 5000) + "  *p = x;\n}\n"
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := Compile(ctx, "sm_90", "slow.cu", []byte(source), o)
		testerr.Expect(t, err, mscclgo.ErrTimeout, "slow.cu")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the deadline of 100 ms ended the call after %v", took)
		}
	})
}

func TestNoCUDACompiler(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("MSCCLGO_NVRTC", filepath.Join(t.TempDir(), "absent"))
	t.Setenv("MSCCLGO_CUDA_COMPILER", "nvrtc")
	compile := func() error {
		_, err := Compile(t.Context(), "sm_90", "k.cu", nil, Options{CacheDir: t.TempDir()})
		return err
	}
	testerr.Expect(t, compile(), mscclgo.ErrUnsupported, "MSCCLGO_NVRTC", "absent", "CUDA_HOME")
	dir := t.TempDir()
	testerr.Check(t, os.WriteFile(filepath.Join(dir, "nvcc"), []byte("#!/bin/sh\n"), 0o700))
	t.Setenv("PATH", dir)
	t.Setenv("MSCCLGO_CUDA_COMPILER", "") // which does not replace what is named
	testerr.Expect(t, compile(), mscclgo.ErrUnsupported, "MSCCLGO_NVRTC", "absent")
	t.Setenv("MSCCLGO_CUDA_COMPILER", "nvrtc")

	t.Setenv("MSCCLGO_NVRTC", t.TempDir())
	testerr.Expect(t, compile(), mscclgo.ErrUnsupported, "libnvrtc.so was not found", "CUDA_HOME")

	false := testerr.Must(os.Executable())(t)
	t.Setenv("MSCCLGO_NVRTC", false)
	testerr.Expect(t, compile(), mscclgo.ErrSystem, "cannot be loaded")

	t.Setenv("MSCCLGO_CUDA_COMPILER", "clang")
	testerr.Expect(t, compile(), mscclgo.ErrInvalid, `"clang"`, "nvrtc or nvcc")
}

// TestNVRTCFallback names a library that is taken only where there is no other.
func TestNVRTCFallback(t *testing.T) {
	t.Setenv("MSCCLGO_NVRTC", "")
	t.Setenv("MSCCLGO_NVRTC_FALLBACK", "")
	usual, none := findNVRTC()
	last := testerr.Must(os.Executable())(t)
	t.Setenv("MSCCLGO_NVRTC_FALLBACK", last)
	got := testerr.Must(findNVRTC())(t)
	if none == nil {
		testcmp.Equal(t, "the library where there is a usual one", got.identity, usual.identity)
	} else if !strings.Contains(got.identity, last) {
		t.Errorf("the library is %s, want %s", got.identity, last)
	}
	t.Setenv("MSCCLGO_NVRTC", filepath.Join(t.TempDir(), "absent"))
	if _, err := findNVRTC(); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("where MSCCLGO_NVRTC names another: %v", err)
	}
}

func TestIncludedText(t *testing.T) {
	folder, library := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		folder + "/a.h":      "A\n# include \"sub/b.h\"\n#include <cuda_fp16.h>\n",
		folder + "/sub/b.h":  "B\n#include \"c.h\"\n#include \"../a.h\"\n",
		folder + "/sub/c.h":  "C\n",
		folder + "/c.h":      "not this one\n",
		library + "/lib.cuh": "L\n",
		library + "/a.h":     "hidden by the user's\n",
		library + "/other.h": "not included\n",
	} {
		testerr.Check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testerr.Check(t, os.WriteFile(path, []byte(text), 0o600))
	}
	j := job{op: "test", name: "k.cu", options: Options{IncludeDirs: []string{folder}}, include: library}
	j.source = []byte("#include <a.h>\n#include <lib.cuh>\nint include;\n")
	text, _, _, err := includedText(j)
	testerr.Check(t, err)
	var letters string
	for _, line := range strings.Fields(string(text)) {
		if len(line) == 1 && line[0] >= 'A' {
			letters += line
		}
	}
	if letters != "ABCL" || bytes.Contains(text, []byte("not")) || bytes.Contains(text, []byte("hidden")) {
		t.Errorf("included %q", text)
	}
	for _, wrong := range []string{"#include NAME\n", "#include\n", "#include \"a.h\n", "#include <\n"} {
		j.source = []byte(wrong)
		_, _, _, err := includedText(j)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "name the file itself")
	}
}

// FuzzIncludedText follows the directives of any text.
func FuzzIncludedText(f *testing.F) {
	for _, seed := range []string{"#include <a>", "#include \"../../etc/passwd\"", "# include_next <b>\n#include c", "#include \"", ""} {
		f.Add([]byte(seed))
	}
	j := job{op: "test", name: "k.cu", include: f.TempDir()}
	f.Fuzz(func(t *testing.T, source []byte) {
		j := j
		j.source = source
		if _, _, _, err := includedText(j); err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
			t.Error(err)
		}
	})
}

// TestNVRTCCompilesSources compiles the sources that MSCCLGO_NVRTC_SOURCES lists,
// a line each, for sm_100, the one of the checks with checks. Each may include files of its own folder.
func TestNVRTCCompilesSources(t *testing.T) {
	list := strings.Fields(os.Getenv("MSCCLGO_NVRTC_SOURCES"))
	if len(list) == 0 {
		t.Skip("MSCCLGO_NVRTC_SOURCES lists no sources")
	}
	t.Setenv("MSCCLGO_CUDA_COMPILER", "nvrtc")
	for _, path := range list {
		t.Run(filepath.Base(path), func(t *testing.T) {
			source := testerr.Must(os.ReadFile(path))(t)
			o := Options{CacheDir: t.TempDir(), IncludeDirs: []string{filepath.Dir(path)}, Check: filepath.Base(path) == "check_test.cu"}
			image := testerr.Must(Compile(t.Context(), "sm_100", path, source, o))(t)
			if !isCubin(image) {
				t.Errorf("the image is no cubin: %.60q", image)
			}
		})
	}
}

// TestRecallCUDA finds an image where the compiler that made it is gone, and not another.
func TestRecallCUDA(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		dir := t.TempDir()
		o.IncludeDirs = []string{dir}
		writeOld(t, dir+"/by.h", "#define BY 2\n", time.Hour)
		source := []byte("#include \"by.h\"\nextern \"C\" __global__ void k(int* v) { *v *= BY; }\n")
		made, err := Compile(t.Context(), "sm_90", "k.cu", source, o)
		testerr.Check(t, err)
		for _, variable := range []string{"CUDA_HOME", "CUDA_PATH", "MSCCLGO_NVRTC", "LD_LIBRARY_PATH", "PATH"} {
			t.Setenv(variable, "/mscclgo-none")
		}
		if _, err := findCUDATool("test"); err == nil {
			t.Skip("another compiler is installed in a usual place")
		}
		found, err := Compile(t.Context(), "sm_90", "k.cu", source, o)
		if err != nil || !bytes.Equal(found, made) {
			t.Errorf("the image is another: %v", err)
		}
		writeOld(t, dir+"/by.h", "#define BY 3\n", time.Hour)
		_, err = Compile(t.Context(), "sm_90", "k.cu", source, o)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "no compiler for NVIDIA GPUs")
		_, err = Compile(t.Context(), "sm_9x", "k.cu", source, o)
		testerr.Expect(t, err, mscclgo.ErrInvalid, "sm_9x")
	})
}

// TestCUDACacheKeys compiles by an nvcc whose image is its environment's flags and a count: what the
// compiler reads besides the source and the options makes another image.
func TestCUDACacheKeys(t *testing.T) {
	home, folder := t.TempDir(), t.TempDir()
	nvcc := "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\necho x >> " + home + "/runs\necho $NVCC_APPEND_FLAGS $(wc -l < " + home + "/runs) > \"$2\"\n"
	testerr.Check(t, errors.Join(os.Mkdir(home+"/bin", 0o755), os.WriteFile(home+"/bin/nvcc", []byte(nvcc), 0o755)))
	t.Setenv("CUDA_HOME", home)
	t.Setenv("MSCCLGO_CUDA_COMPILER", "nvcc")
	o := Options{CacheDir: t.TempDir()}
	compile := func(source string) string {
		t.Helper()
		image := testerr.Must(Compile(t.Context(), "sm_90", "k.cu", []byte(source), o))(t)
		return string(image)
	}
	header := func(text string) {
		t.Helper()
		writeOld(t, folder+"/there.h", text, time.Hour)
	}
	const included, may = "#include <there.h>\n", "#if __has_include(\"may.h\")\n#define HAS\n#endif\n"
	first := compile(okSource)
	if again := compile(okSource); again != first {
		t.Errorf("the same was compiled twice: %q and %q", first, again)
	}
	t.Setenv("NVCC_APPEND_FLAGS", "-DA=1")
	one := compile(okSource)
	t.Setenv("NVCC_APPEND_FLAGS", "-DA=2")
	if two := compile(okSource); !strings.Contains(one, "-DA=1") || !strings.Contains(two, "-DA=2") {
		t.Errorf("with -DA=1 and -DA=2 the images are %q and %q", one, two)
	}
	t.Setenv("CPATH", folder)
	header("1")
	one = compile(included)
	header("2")
	if two := compile(included); one == two {
		t.Errorf("a header in a folder of CPATH has changed, and the image is %q", two)
	}
	if one, two := compile(may), compile(may); one == two {
		t.Errorf("the image of what a missing file changes was taken from the cache: %q", one)
	}
}
