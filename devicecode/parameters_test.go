package devicecode

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// describedSource has parameters of all kinds.
const describedSource = `
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mscclgo/memory_channel.cuh>
struct Inner { float w[3]; int* p; };
struct Args { Inner in; unsigned long long n; };
struct Base { int b; };
struct Derived : Base { int d; };
struct Bits { unsigned f : 3, g : 5; };
union Either { int a; float b; };
enum Color : int { Red };
struct Outer { enum class Mode : short { One }; struct { int x; } unnamed; };
template <class T> struct Vec { T x, y; };
extern "C" {
__global__ void described(float* data, const float factor, uint32_t n, __half h, bool on, signed char c, Args args,
    Color color, Vec<double> v, const mscclgo::MemoryChannelHandle* __restrict__ channels, Derived derived, Bits bits,
    Either either, void* const nothing, size_t big, unsigned, const volatile char** strings,
    Outer::Mode mode, Outer outer) {
  if (threadIdx.x < n) data[threadIdx.x] *= factor + float(v.x) + args.in.w[0];
}
}
namespace inner {
extern "C" __global__ void __launch_bounds__(64) nested(short i) {}
}
typedef float scalar;
using real = const scalar;
using byte = unsigned char;
using size_t = unsigned long; // as <cstddef> has it
namespace odd { using uint64_t = float; using half = __nv_bfloat16; }
using handle = mscclgo::MemoryChannelHandle;
using texts = char* const;
struct List { List* next; };
typedef struct { int x; } unnamed;
extern "C" __global__ void pointers(real* a, volatile scalar* b, byte* c, const uint8_t* d, odd::half* e, const handle* f, texts* g,
    Color* h, void* i, const int64_t* j, double* k, int (*l)[3], unsigned* m, List* n, Either* o, unnamed* p, size_t** q, odd::uint64_t* r, __half* s, half* t) {}
__device__ float helper(float x) { return x; }
`

func TestSignatures(t *testing.T) { testSignatures(t, ArchEmu, Options{CacheDir: t.TempDir()}) }

func TestSignaturesCUDA(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) {
		o.Flags = []string{"-lineinfo"} // which the compilers do not take besides -G
		testSignatures(t, "sm_90", o)
	})
}

// described returns what the image of a source tells of its kernels.
func described(t *testing.T, arch, source string, o Options) []signature.Kernel {
	t.Helper()
	image, err := Compile(t.Context(), arch, "described.cu", []byte(source), o)
	testerr.Check(t, err)
	_, kernels, err := signature.Split(image)
	testerr.Check(t, err)
	return kernels
}

func testSignatures(t *testing.T, arch string, o Options) {
	t.Helper()
	kernels := described(t, arch, describedSource, o)
	got := map[string][]string{}
	var args, half signature.Type
	var to []string // of the pointers of the kernel of that name
	for _, k := range kernels {
		got[k.Name] = []string{}
		for _, p := range k.Params {
			got[k.Name] = append(got[k.Name], p.String())
			if k.Name == "pointers" {
				of := p.Type.Pointee()
				if p.Type.Name == "unnamed*" && of.Name == "unnamed" { // as NVIDIA's compilers call it
					of.Name = "struct"
				}
				to = append(to, fmt.Sprint(of.Kind, of.Size, " ", of.Name))
			}
			if k.Name != "described" {
				continue
			}
			switch p.Name {
			case "args":
				args = p.Type
			case "h":
				half = p.Type
			case "outer":
				if n := p.Type.Fields[0].Type.Name; n != "struct" {
					t.Errorf("an unnamed struct is named %q", n)
				}
			case "bits", "either":
				if p.Type.Kind != signature.Struct || p.Type.Fields != nil {
					t.Errorf("%s is described as %+v", p.Name, p.Type)
				}
			}
		}
	}
	want := map[string][]string{
		"described": {"float* data", "float factor", "uint32_t n", "__half h", "bool on", "signed char c", "Args args",
			"Color color", "Vec<double> v", "const MemoryChannelHandle* channels", "Derived derived", "Bits bits",
			"Either either", "void* nothing", "size_t big", "unsigned int", "const volatile char** strings",
			"Mode mode", "Outer outer"},
		"nested": {"short i"},
		"pointers": {"real* a", "volatile scalar* b", "byte* c", "const uint8_t* d", "half* e", "const handle* f", "texts* g", "Color* h",
			"void* i", "const int64_t* j", "double* k", "int[3]* l", "unsigned int* m", "List* n", "Either* o", "unnamed* p", "size_t** q", "uint64_t* r", "__half* s", "half* t"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	wantTo := []string{"5 4 float", "5 4 float", "3 1 unsigned char", "3 1 uint8_t", "0 0 __nv_bfloat16", "0 0 MemoryChannelHandle", "6 8 char*", "0 0 Color",
		"0 0 void", "2 8 int64_t", "5 8 double", "0 0 int[3]", "3 4 unsigned int", "0 0 List", "0 0 Either", "0 0 struct", "6 8 size_t*", "5 4 float", "0 0 __half", "0 0 __half"}
	if diff := cmp.Diff(wantTo, to); diff != "" {
		t.Error("what the pointers point to:", diff)
	}
	float := signature.Type{Kind: signature.Float, Name: "float", Size: 4}
	wantArgs := signature.Type{Kind: signature.Struct, Name: "Args", Size: 32, Fields: []signature.Field{
		{Name: "in", Type: signature.Type{Kind: signature.Struct, Name: "Inner", Size: 24, Fields: []signature.Field{
			{Name: "w", Type: signature.Type{Kind: signature.Array, Name: "float[3]", Size: 12, Count: 3, Fields: []signature.Field{{Type: float}}}},
			{Name: "p", Offset: 16, Type: signature.Type{Kind: signature.Pointer, Name: "int*", Size: 8, Fields: []signature.Field{{Type: signature.Type{Kind: signature.Int, Name: "int", Size: 4}}}}},
		}}},
		{Name: "n", Offset: 24, Type: signature.Type{Kind: signature.Uint, Name: "unsigned long long", Size: 8}},
	}}
	if diff := cmp.Diff(wantArgs, args); diff != "" {
		t.Error(diff)
	}
	if half.Kind != signature.Struct || half.Size != 2 {
		t.Errorf("__half is described as %+v", half)
	}
}

// TestArrayMembers has arrays of several dimensions, and of no elements, with which the other
// kernels of the source are described too.
func TestArrayMembers(t *testing.T) {
	const source = `
struct Flexible { int n; float rest[]; };
struct None { int n; int none[0]; short table[2][3]; };
extern "C" __global__ void flexible(Flexible f) {}
extern "C" __global__ void none(None n) {}
`
	kernels := described(t, ArchEmu, source, Options{CacheDir: t.TempDir()})
	got := map[string][]string{}
	for _, k := range kernels {
		for _, f := range k.Params[0].Type.Fields {
			name := strings.Replace(f.Type.Name, "[]", "[0]", 1) // as clang has it
			got[k.Name] = append(got[k.Name], fmt.Sprintf("%s %s at %d: %d bytes", name, f.Name, f.Offset, f.Type.Size))
		}
	}
	want := map[string][]string{
		"flexible": {"int n at 0: 4 bytes", "float[0] rest at 4: 0 bytes"},
		"none":     {"int n at 0: 4 bytes", "int[0] none at 4: 0 bytes", "short[2][3] table at 4: 12 bytes"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestEnums has enums of all integers, which take numbers as those do, and pointers to them, which take any.
func TestEnums(t *testing.T) { testEnums(t, ArchEmu, Options{CacheDir: t.TempDir()}) }

func TestEnumsCUDA(t *testing.T) {
	forEachCUDATool(t, func(t *testing.T, o Options) { testEnums(t, "sm_90", o) })
}

func testEnums(t *testing.T, arch string, o Options) {
	t.Helper()
	const source = `
#include <mscclgo/config.cuh>
enum class U8 : uint8_t { A }; enum class U16 : unsigned short { A }; enum class U32 : unsigned { A }; enum class U64 : uint64_t { A = 1ull << 63 };
enum class I8 : signed char { A }; enum class I16 : short { A }; enum class I32 { A }; enum class I64 : long long { A = -1 };
enum Plain { kA }; enum Negative { kB = -1 }; enum Large { kC = 1ull << 32 }; enum Fixed : unsigned char { kD };
enum class Switch : bool { kOff }; enum class Letter : signed char { A }; namespace inner { typedef uint16_t word; enum class Named : const word { A }; }
enum class Upper8 : uint8_t { A, B = 128 }; enum class Upper32 : uint32_t { A = ~0u }; enum class Lower : signed char { A, B = -128 };
struct Outer { enum class Inner : uint8_t { A } in[2]; };
extern "C" __global__ void enums(U8 a, U16 b, U32 c, U64 d, I8 e, I16 f, I32 g, const I64 h, Plain i, Negative j, Large k, Fixed l,
    Switch m, Letter n, inner::Named o, Outer p, U8* q, Plain* r, Upper8 s, Upper32 t, Lower u) {}
`
	name := map[signature.Kind]string{signature.Bool: "bool", signature.Int: "signed", signature.Uint: "unsigned", signature.Enum: "unknown"}
	var got []string
	for _, k := range described(t, arch, source, o) {
		for _, p := range k.Params {
			of := p.Type
			if to := of.Pointee(); of.Kind == signature.Pointer {
				if to.Kind != signature.Opaque {
					t.Errorf("%v points to %+v", p, to)
				}
				continue
			}
			for len(of.Fields) > 0 {
				of = of.Fields[0].Type
			}
			got = append(got, fmt.Sprintf("%v: %s, of %d bytes", p, name[of.Kind], of.Size))
		}
	}
	want := []string{"U8 a: unsigned, of 1 bytes", "U16 b: unsigned, of 2 bytes", "U32 c: unsigned, of 4 bytes", "U64 d: unsigned, of 8 bytes",
		"I8 e: signed, of 1 bytes", "I16 f: signed, of 2 bytes", "I32 g: signed, of 4 bytes", "I64 h: signed, of 8 bytes",
		"Plain i: unsigned, of 4 bytes", "Negative j: signed, of 4 bytes", "Large k: unsigned, of 8 bytes", "Fixed l: unsigned, of 1 bytes",
		"Switch m: bool, of 1 bytes", "Letter n: signed, of 1 bytes", "Named o: unsigned, of 2 bytes", "Outer p: unsigned, of 1 bytes",
		"Upper8 s: unsigned, of 1 bytes", "Upper32 t: unsigned, of 4 bytes", "Lower u: signed, of 1 bytes"}
	if arch != ArchEmu { // NVIDIA's compilers tell no more than the enumerators
		for i, w := range want {
			if p, _, _ := strings.Cut(w, ":"); !slices.Contains([]string{"Negative j", "Upper8 s", "Upper32 t", "Lower u"}, p) {
				want[i] = p + ": unknown" + w[strings.Index(w, ","):]
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInnerName(t *testing.T) {
	for name, want := range map[string]string{
		"Plain": "Plain", "_ZN4Args1EE": "E", "_ZN1a2bc3defE": "def", "_ZN4ArgsUt_E": "", "": "",
		"_ZN4Args": "_ZN4Args", "_ZN99xE": "_ZN99xE", "_ZNE": "_ZNE", "_ZN": "_ZN", "_ZN3fooIiE": "_ZN3fooIiE",
	} {
		if got := innerName(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}
