package emu_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/emuimage"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestModules(t *testing.T) {
	d := open(t)
	const source = `
struct Handle { void* p; unsigned char kind; double d[2]; };
extern "C" { __device__ int counter = 5; __constant__ float table[3] = {1, 2, 3}; }
#define MAKE(name, n) extern "C" __global__ void name() { atomicAdd(&counter, n); }
MAKE(one, 1) MAKE(ten, 10)
namespace inner { extern "C" __global__ void hundred() { atomicAdd(&counter, 100); } }
__global__ void mangled() {}
template <class T> __global__ void generic(T*) {}
extern "C" __global__ void many(char c, Handle h, float4 v, short s, const __grid_constant__ unsigned long long u, int* out);
extern "C" __global__ void many(char c, Handle h, float4 v, short s, unsigned long long u, int* out) {
  *out = c + h.kind + (int)h.d[1] + (int)v.w + s + (int)u;
}
`
	m, again := load(t, d, source), load(t, d, source)
	counter := func(name string) (uint64, int32) {
		p, size, err := m.Symbol(name)
		must(t, err)
		if size != 4 {
			t.Errorf("%s has %d bytes", name, size)
		}
		return p, read[int32](t, d, p, 1)[0]
	}
	ran(t, d, kernelOf(t, m, "one"), shape(2, 2))
	ran(t, d, kernelOf(t, m, "ten"), shape(1, 1))
	ran(t, d, kernelOf(t, m, "hundred"), shape(1, 1))
	ran(t, d, kernelOf(t, again, "one"), shape(1, 1))
	p, v := counter("counter")
	if v != 5+4+10+100 {
		t.Errorf("counter is %d", v)
	}
	q, _, err := again.Symbol("counter")
	must(t, err)
	if v := read[int32](t, d, q, 1)[0]; p == q || v != 6 {
		t.Errorf("the second load's counter is %d at %#x, the first's at %#x", v, q, p)
	}
	if p, size, err := m.Symbol("table"); size != 12 || err != nil || read[float32](t, d, p, 3)[2] != 3 {
		t.Errorf("table: %d bytes, %v", size, err)
	}
	if _, _, err := m.Symbol("one"); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a function as a variable: %v", err)
	}
	for _, name := range []string{"mangled", "generic", "counter", ""} {
		_, err := m.Kernel(name)
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "hundred, many, one, ten") {
			t.Errorf("kernel %q: %v", name, err)
		}
	}

	k := kernelOf(t, m, "many")
	type param = struct{ Offset, Size uint32 }
	want := []param{{0, 1}, {8, 32}, {48, 16}, {64, 2}, {72, 8}, {80, 8}}
	for i, p := range k.Params() {
		if i >= len(want) || param(p) != want[i] {
			t.Fatalf("parameters: %v, want %v", k.Params(), want)
		}
	}
	out := alloc(t, d, 4)
	args := make([]byte, 88)
	args[0], args[16], args[64], args[72] = 1, 2, 3, 4
	copy(args[32:], pack(float64(50)))
	copy(args[60:], pack(float32(600)))
	copy(args[80:], pack(out.Ptr()))
	s := stream(t, d)
	must(t, s.Launch(k, shape(1, 1), args), s.Synchronize(deadline(t)))
	if v := read[int32](t, d, out.Ptr(), 1)[0]; v != 660 {
		t.Errorf("the sum of the arguments is %d", v)
	}
	must(t, again.Close(), again.Close())
	testerr.Expect(t, s.Launch(kernelOf(t, again, "one"), shape(1, 1), nil), mscclgo.ErrInvalid)
}

// TestForgottenModule loads modules that nobody keeps or closes: what is loaded
// later must not be mistaken for one of them.
func TestForgottenModule(t *testing.T) {
	d := open(t)
	a := compiled(t, `extern "C" __global__ void a() {}`)
	b := compiled(t, `extern "C" __global__ void b() {}`)
	for range 4 {
		for range 4 {
			_, err := d.LoadModule(a)
			must(t, err)
		}
		runtime.GC()
		runtime.GC()
		m, err := d.LoadModule(b)
		must(t, err)
		kernelOf(t, m, "b")
	}
}

// TestCloseUnloads closes a device with modules that nobody closed, as programs do that leave all to
// the device: it keeps none of their memory files.
func TestCloseUnloads(t *testing.T) {
	d := open(t)
	image := compiled(t, `extern "C" __global__ void a() {}`)
	before := moduleFiles(t)
	closed, err := d.LoadModule(image)
	must(t, err)
	left, err := d.LoadModule(image)
	must(t, err)
	kernel := kernelOf(t, left, "a")
	s := stream(t, d)
	must(t, s.Launch(kernel, shape(1, 1), nil), s.Synchronize(deadline(t)))
	if n := moduleFiles(t) - before; n != 2 {
		t.Fatalf("two modules have %d memory files", n)
	}
	must(t, closed.Close(), d.Close())
	if n := moduleFiles(t) - before; n != 0 {
		t.Errorf("the closed device keeps %d memory files of modules", n)
	}
	testerr.Expect(t, s.Launch(kernel, shape(1, 1), nil), mscclgo.ErrInvalid)
	_, err = d.LoadModule(image)
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	must(t, left.Close())
	if n := moduleFiles(t) - before; n != 0 {
		t.Errorf("%d memory files of modules after all", n)
	}
}

// moduleFiles returns how many modules are loaded in this process.
func moduleFiles(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range files {
		if name, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(name, "/memfd:mscclgo-module") {
			n++
		}
	}
	return n
}

func TestMalformedImages(t *testing.T) {
	d := open(t)
	image, err := devicecode.Compile(t.Context(), "emu", "k.cu", []byte(`extern "C" __global__ void k() {}`), devicecode.Options{})
	must(t, err)
	object, err := emuimage.Open(image)
	must(t, err)
	altered := append([]byte(nil), image...)
	altered[len(altered)/2] ^= 1
	for what, bad := range map[string][]byte{
		"nothing":                  {},
		"a text":                   []byte("not an image, but long enough to look at"),
		"no envelope":              object,
		"cut short":                image[:len(image)-100],
		"altered":                  altered,
		"an empty envelope":        emuimage.Seal(nil),
		"a text in an envelope":    emuimage.Seal([]byte("text")),
		"half an ELF file":         emuimage.Seal(object[:len(object)/2]),
		"ELF without a table":      emuimage.Seal([]byte(strings.ReplaceAll(string(object), "mscclgo_emu_table", "mscclgo_emu_tabel"))),
		"ELF for another machine":  emuimage.Seal(patched(object, 18, 0x08)), // e_machine: MIPS
		"an object of another ABI": emuimage.Seal(otherABI(t, object)),
	} {
		if m, err := d.LoadModule(bad); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
}

// TestImageOfAnotherProcessor: the error says what the image is for.
func TestImageOfAnotherProcessor(t *testing.T) {
	d := open(t)
	object, err := emuimage.Open(compiled(t, `extern "C" __global__ void k() {}`))
	must(t, err)
	_, err = d.LoadModule(emuimage.Seal(patched(object, 18, 0x08))) // e_machine: MIPS
	testerr.Expect(t, err, mscclgo.ErrInvalid, "EM_MIPS", runtime.GOARCH)
}

func patched(object []byte, at int, value byte) []byte {
	object = append([]byte(nil), object...)
	object[at] = value
	return object
}

// otherABI is the object with another version in its table.
func otherABI(t *testing.T, object []byte) []byte {
	f, err := elf.NewFile(bytes.NewReader(object))
	must(t, err)
	symbols, err := f.Symbols()
	must(t, err)
	for _, s := range symbols {
		if s.Name == "mscclgo_emu_table" {
			section := f.Sections[s.Section]
			return patched(object, int(s.Value-section.Addr+section.Offset), 99)
		}
	}
	t.Fatal("the object has no table")
	return nil
}
