package main

import (
	"context"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// genSource has kernels with parameters of all kinds; each adds them up.
const genSource = `
#include <cuda_fp16.h>
#include <mscclgo/group.cuh>
struct Inner { char c; double w[2]; const int* p; };
struct alignas(16) Args { Inner in; uint8_t b; struct { short s; } named; };
union Either { int a; float b; };
struct Base { int b; };
struct Derived : Base { int d; };
struct Bits { unsigned f : 3, g : 5; };
enum class Color : short { Red, Green };
enum class Flags : uint8_t { None };
extern "C" {
__global__ void plain(float* out, const float factor, uint32_t n, bool on, signed char c, int64_t type, uint16_t u16, double d,
                      Color color, unsigned) {
  out[0] = factor + n + on + c + type + u16 + d + float(color);
}
__global__ void structs(float* out, Args args, Either either, Derived derived, Bits bits, __half h, mscclgo::PeerMemory peers) {
  out[0] = args.in.c + args.in.w[1] + *args.in.p + args.b + args.named.s + either.b + derived.b + derived.d + bits.f + bits.g +
           float(h) + ((const void*)peers.ranks[3] == args.in.p);
}
__global__ void close() {}
__global__ void load_all(int* k, int stream, int cfg, int func) { *k = stream + cfg + func; }
}
extern "C" __global__ void flagged(float* out, Flags flags) { out[0] = float(flags); }
template <class T> __global__ void notHere(T) {}
`

// genProgram calls all of it.
const genProgram = `package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

func main() {
	ctx := context.Background()
	device := must(gpu.Open("emu:0"))
	k := must(LoadMyKernels(ctx, device))
	defer k.Close()
	s := must(device.NewStream())
	out := must(device.Alloc(4))
	seven := must(gpu.Upload(device, []int32{7}))
	one := gpu.Blocks(1, 1)
	value := func() float32 {
		check(s.Synchronize(ctx))
		v := []float32{0}
		check(gpu.CopyOut(v, out))
		return v[0]
	}
	check(k.Plain(s, one, out, 0.5, 1, true, -1, 1<<20, 3, 0.25, 1, 0))
	fmt.Println(value())
	args := Args{In: Inner{C: 1, W: [2]float64{0, 0.5}, P: seven.Ptr()}, B: 2}
	args.Named.S = 3
	bits := math.Float32bits(4)
	either := Either{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)}
	peers := devicecode.PeerMemory{}
	*(*gpu.Ptr)(unsafe.Add(unsafe.Pointer(&peers), 3*8)) = seven.Ptr() // ranks[3]
	check(k.Structs(s, one, out.Ptr(), args, either, Derived{5, 0, 0, 0, 6, 0, 0, 0}, Bits{3 | 2<<3}, 0x3c00, peers))
	fmt.Println(value())
	check(k.Flagged(s, one, out, 200))
	fmt.Println(value())
	check(k.Close2(s, one))
	check(k.LoadAll(s, one, gpu.Pointer(out), 1, 2, 3))
	check(s.Synchronize(ctx))
	fmt.Println(len(k.Module().Device().Info().Arch))
	if k.Plain(s, gpu.Blocks(0, 1), out, 0, 0, false, 0, 0, 0, 0, 0, 0) == nil {
		os.Exit(3)
	}
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}
`

// genWrong has one wrong argument a line.
const genWrong = `package main

import "github.com/mscclgo/mscclgo/gpu"

func wrong(k *MyKernels, s *gpu.Stream, c gpu.LaunchConfig, out *gpu.Buffer, n int, x float64) {
	_ = k.LoadAll(s, c, 5, 1, 2, 3)
	_ = k.LoadAll(s, c, n, 1, 2, 3)
	_ = k.LoadAll(s, c, uint64(7), 1, 2, 3)
	_ = k.LoadAll(s, c, out, n, 2, 3)
	_ = k.LoadAll(s, c, out, 1.5, 2, 3)
	_ = k.LoadAll(s, c, out, 1, 2)
	_ = k.Plain(s, c, out, n, 1, true, 1, 1, 1, 1, 1, 1)
	_ = k.Plain(s, c, out, x, 1, true, 1, 1, 1, 1, 1, 1)
	_ = k.Plain(s, c, out, 1, -1, true, 1, 1, 1, 1, 1, 1)
	_ = k.Plain(s, c, out, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	_ = k.Plain(s, c, out, 1, 1, true, 128, 1, 1, 1, 1, 1)
	_ = k.Flagged(s, c, out, -1)
	_ = k.Structs(s, c, out, Inner{}, Either{}, Derived{}, Bits{}, 0, [72]gpu.Ptr{})
}
`

// inModule runs the go command in a module of somebody else's.
func inModule(t *testing.T, dir string, env []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off"), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestGen generates functions into a module of its own, which has images and no compiler,
// and calls them; and calls them wrongly, which does not compile.
func TestGen(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	root, err := filepath.Abs("../..")
	testerr.Check(t, err)
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Skip("the sources are not here")
	}
	const module = "github.com/mscclgo/mscclgo"
	dir := sources(t, map[string]string{
		"go.mod":  "module example.com/user\n\ngo 1.26.0\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
		"own.cu":  genSource,
		"main.go": genProgram,
	})
	t.Setenv("GOPACKAGE", "main") // as go generate does
	if code, stdout, stderr := try("gen", "-arch", "emu", "-o", "my_kernels.go", "own.cu"); code != exitOK || stdout+stderr != "" {
		t.Fatalf("code %d, %q, %q", code, stdout, stderr)
	}
	text := testerr.Must(os.ReadFile("my_kernels.go"))(t)
	checkStyle(t, string(text))

	for _, args := range [][]string{{"get", "."}, {"vet", "."}, {"build", "-buildvcs=false", "-o", "program", "."}} {
		if out, err := inModule(t, dir, nil, "go", args...); err != nil {
			t.Fatalf("go %v: %v\n%s\n%s", args, err, out, text)
		}
	}
	bare := []string{"HOME=", "XDG_CACHE_HOME=", "PATH=", "CXX=", "MSCCLGO_CACHE=/proc/none", "TMPDIR=/proc/none"}
	out, err := inModule(t, dir, bare, filepath.Join(dir, "program"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff("1.0485818e+06\n35.5\n200\n3\n", out); diff != "" {
		t.Error(diff)
	}

	testerr.Check(t, os.WriteFile("wrong.go", []byte(genWrong), 0o600))
	out, err = inModule(t, dir, nil, "go", "build", "-gcflags=-e", "-buildvcs=false", "-o", "program", ".")
	if err == nil {
		t.Fatal("wrong arguments compile")
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`wrong\.go:(\d+):`).FindAllStringSubmatch(out, -1) {
		found[m[1]] = true
	}
	first := strings.Count(genWrong[:strings.Index(genWrong, "_ =")], "\n") + 1
	if lines := strings.Count(genWrong, "_ ="); len(found) != lines {
		t.Errorf("of %d wrong calls from line %d on, these do not compile: %v\n%s", lines, first, found, out)
	}
}

// checkStyle checks that a file is formatted and that all its exported names have comments.
func checkStyle(t *testing.T, text string) {
	t.Helper()
	formatted := testerr.Must(format.Source([]byte(text)))(t)
	if diff := cmp.Diff(text, string(formatted)); diff != "" {
		t.Errorf("gofmt would change: %s", diff)
	}
	f := testerr.Must(parser.ParseFile(token.NewFileSet(), "my_kernels.go", text, parser.ParseComments))(t)
	if !ast.IsGenerated(f) {
		t.Error("the file does not say that it was generated")
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && !strings.HasPrefix(d.Doc.Text(), d.Name.Name+" ") {
				t.Errorf("%s has the comment %q", d.Name.Name, d.Doc.Text())
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && !strings.HasPrefix(d.Doc.Text(), s.Name.Name+" ") {
					t.Errorf("%s has the comment %q", s.Name.Name, d.Doc.Text())
				}
			}
		}
	}
}

func TestGenRefuses(t *testing.T) {
	dir := sources(t, map[string]string{
		"good.cu":   "extern \"C\" __global__ void k(int* a) {}\n",
		"none.cu":   "__global__ void k() {}\n",
		"local.cu":  "#include \"local.h\"\nextern \"C\" __global__ void k(Local a) {}\n",
		"local.h":   "typedef int Local;\n",
		"wrong.cu":  "int x = ;\n",
		"go.module": "",
		"hand":      "package p\n",
	})
	testerr.Check(t, os.Mkdir("below", 0o700))
	t.Setenv("GOPACKAGE", "")
	for _, c := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"gen", exitUsage, "which source?"},
		{"gen -I . good.cu", exitUsage, "-I needs -arch"},
		{"gen -package 1 good.cu", exitFailed, `"1" is not a name for a Go package`},
		{"gen -package p -type own good.cu", exitFailed, "no capital letter"},
		{"gen -package p none.cu", exitFailed, "extern \"C\" __global__"},
		{"gen -package p wrong.cu", exitFailed, "wrong.cu:1:"},
		{"gen -package p local.cu", exitFailed, "local.h"},
		{"gen -package p -o below/k.go good.cu", exitFailed, "Go cannot embed it"},
		{"gen -package p -o good.cu good.cu", exitUsage, "would replace the source"},
		{"gen -package p -o hand good.cu", exitUsage, "hand was not written by gen"},
		{"gen -package p -o absent/k.go -arch emu good.cu", exitFailed, "absent"},
	} {
		code, stdout, stderr := try(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, %q, %q", c.args, code, stdout, stderr)
		}
	}
	if left, err := filepath.Glob(dir + "/*.go"); err != nil || left != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if code, _, stderr := try("gen", "-package", "p", "-arch", "emu", "-o", "below/k.go", "local.cu"); code != exitOK {
		t.Errorf("images from a source elsewhere: %q", stderr)
	}
}

func TestAgree(t *testing.T) {
	number := func(size uint32) signature.Param {
		return signature.Param{Name: "n", Type: signature.Type{Kind: signature.Uint, Name: "N", Size: size}}
	}
	a := []signature.Kernel{{Name: "k", Params: []signature.Param{number(4)}}, {Name: "_Z1k"}}
	for _, c := range []struct {
		b    []signature.Kernel
		says string
	}{
		{a[:1], ""},
		{nil, "a kernel k for emu and not for sm_90"},
		{append([]signature.Kernel{{Name: "more"}}, a...), "a kernel more for sm_90 and not for emu"},
		{[]signature.Kernel{{Name: "k", Params: []signature.Param{number(8)}}}, "k(N n) for emu and k(N n) for sm_90"},
		{[]signature.Kernel{{Name: "k"}}, "k(N n) for emu and k() for sm_90"},
	} {
		err := agree("emu", "sm_90", a, c.b)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.b, err)
		}
	}
}
