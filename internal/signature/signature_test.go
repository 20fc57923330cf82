package signature

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/wire"
)

var (
	float = Type{Kind: Float, Name: "float", Size: 4}
	some  = []Kernel{
		{Name: "none"},
		{Name: "scale", Params: []Param{
			{Name: "data", Type: Type{Kind: Pointer, Name: "float*", Size: 8}},
			{Name: "n", Type: Type{Kind: Uint, Name: "uint32_t", Size: 4}},
			{Type: Type{Kind: Struct, Name: "Vec", Size: 16, Fields: []Field{
				{Name: "x", Type: float},
				{Name: "w", Offset: 4, Type: Type{Kind: Array, Name: "float[3]", Size: 12, Count: 3, Fields: []Field{{Type: float}}}},
			}}},
		}},
	}
)

func TestRoundTrip(t *testing.T) {
	image := []byte("\x7fELF and so on")
	both := Append(image, some)
	plain, kernels, err := Split(both)
	if err != nil || !bytes.Equal(plain, image) {
		t.Fatalf("the image came back as %q, %v", plain, err)
	}
	if diff := cmp.Diff(some, kernels); diff != "" {
		t.Error(diff)
	}
	if got, want := some[1].String(), "scale(float* data, uint32_t n, Vec)"; got != want {
		t.Errorf("String is %q, want %q", got, want)
	}
}

func TestPointee(t *testing.T) {
	for name, want := range map[string]Type{
		"float*": {Kind: Float, Size: 4}, "const float*": {Kind: Float, Size: 4}, "const volatile double*": {Kind: Float, Size: 8},
		"uint32_t* const": {Kind: Uint, Size: 4}, "const unsigned long long*": {Kind: Uint, Size: 8}, "char*": {Kind: Int, Size: 1},
		"bool*": {Kind: Bool, Size: 1}, "const char**": {Kind: Pointer, Size: 8}, "int* volatile const*": {Kind: Pointer, Size: 8},
		"void*": {}, "const MemoryChannelHandle*": {}, "__half*": {}, "real*": {}, "": {}, "*": {}, "float": {}, "function()*": {},
	} {
		got := Type{Kind: Pointer, Name: name, Size: 8}.Pointee()
		got.Name = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := (Type{Kind: Uint, Name: "float*", Size: 8}).Pointee(); got.Kind != Opaque {
		t.Errorf("what is no pointer points to %+v", got)
	}
}

// TestPointsTo has pointers tell what they point to, as they do since version 2.
func TestPointsTo(t *testing.T) {
	pointer := func(to Type) Type {
		p := Type{Kind: Pointer, Name: "scalar*", Size: 8}
		p.PointsTo(to)
		return p
	}
	to := []Type{
		float, {Kind: Pointer, Name: "char*", Size: 8}, {Kind: Struct, Name: "__half", Size: 2, Fields: []Field{{Type: float}}},
		{Kind: Enum, Name: "Color", Size: 4}, {Kind: Uint, Name: "unsigned __int128", Size: 16},
	}
	want := []Type{float, to[1], {Name: "__half"}, {Name: "Color"}, {Name: "unsigned __int128"}}
	kernel := Kernel{Name: "k"}
	for _, to := range to {
		kernel.Params = append(kernel.Params, Param{Type: pointer(to)})
	}
	_, kernels, err := Split(Append(nil, []Kernel{kernel}))
	if err != nil || len(kernels) != 1 {
		t.Fatal(kernels, err)
	}
	for i, p := range kernels[0].Params {
		if diff := cmp.Diff(want[i], p.Type.Pointee()); diff != "" {
			t.Errorf("%s: %s", to[i].Name, diff)
		}
	}
	if !IsNumber("uint8_t", Type{Kind: Uint, Size: 1}) || IsNumber("uint8_t", float) || IsNumber("scalar", float) {
		t.Error("IsNumber is wrong")
	}
}

// TestVersion1 reads a description of the first version, which bundles may have, and no other.
func TestVersion1(t *testing.T) {
	w := wire.NewWriter(0)
	w.U32(1)
	w.String("k")
	w.U32(1)
	w.String("p")
	write(w, Type{Kind: Pointer, Name: "float*", Size: 8})
	for v, want := range map[uint8]string{1: "float", 0: "", 3: ""} {
		sealed := wire.Seal(kind, v, w.Bytes())
		image := binary.LittleEndian.AppendUint32(bytes.Clone(sealed), uint32(len(sealed)))
		_, kernels, err := Split(append(image, mark...))
		if want == "" {
			if err == nil {
				t.Errorf("version %d is read", v)
			}
			continue
		}
		if err != nil || kernels[0].Params[0].Type.Pointee().Name != want {
			t.Errorf("version %d: %v, %v", v, kernels, err)
		}
	}
}

func TestForeign(t *testing.T) {
	for _, image := range []string{"", "x", mark[1:], "a cubin"} {
		plain, kernels, err := Split([]byte(image))
		if string(plain) != image || kernels != nil || err != nil {
			t.Errorf("%q: %q, %v, %v", image, plain, kernels, err)
		}
	}
}

func TestDamaged(t *testing.T) {
	both := Append([]byte("image"), some)
	for i := len("image"); i < len(both)-len(mark); i++ {
		damaged := bytes.Clone(both)
		damaged[i] ^= 0x40
		if _, _, err := Split(damaged); err == nil {
			t.Errorf("byte %d of %d altered, and no error", i, len(both))
		}
	}
	if _, _, err := Split([]byte("\xff\xff\xff\xff" + mark)); err == nil {
		t.Error("a length beyond the image is no error")
	}
}

// TestLimits leaves out a description that could not be read back.
func TestLimits(t *testing.T) {
	image := []byte("image")
	deep := float
	for range maxDepth + 1 {
		deep = Type{Kind: Struct, Name: "s", Size: 4, Fields: []Field{{Name: "f", Type: deep}}}
	}
	for name, k := range map[string]Kernel{
		"name":  {Name: strings.Repeat("x", maxName+1)},
		"depth": {Params: []Param{{Type: deep}}},
		"field": {Params: []Param{{Type: Type{Kind: Struct, Size: 2, Fields: []Field{{Type: float}}}}}},
		"kind":  {Params: []Param{{Type: Type{Kind: lastKind + 1}}}},
		"count": {Params: []Param{{Type: Type{Kind: Float, Count: 1}}}},
	} {
		if got := Append(image, []Kernel{k}); !bytes.Equal(got, image) {
			t.Errorf("%s: a description of %d bytes was written", name, len(got)-len(image))
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(Append([]byte("image"), some))
	f.Add([]byte(mark))
	f.Fuzz(func(t *testing.T, image []byte) {
		plain, kernels, err := Split(image)
		if err != nil || kernels == nil {
			return
		}
		if !bytes.Equal(Append(plain, kernels), image) {
			t.Fatal("what was read is written differently")
		}
	})
}
