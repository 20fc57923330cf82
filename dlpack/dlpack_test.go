package dlpack_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/dlpack"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/dlpacktest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// hostMemory returns memory of the host, as a framework's array has.
func hostMemory(t *testing.T, d *gpu.Device, bytes uint64) *gpu.Buffer {
	t.Helper()
	b := testerr.Must(d.AllocHost(bytes))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func makeTensor(t *testing.T, about dlpacktest.Tensor) dlpacktest.Managed {
	t.Helper()
	m := dlpacktest.Make(about)
	t.Cleanup(m.Free)
	return m
}

// deletions compares how often a tensor's deleter was called.
func deletions(t *testing.T, m dlpacktest.Managed, want int) {
	t.Helper()
	if calls, correct := m.Deleted(); calls != want || correct != want {
		t.Errorf("the deleter was called %d times, %d of them with the tensor; want %d", calls, correct, want)
	}
}

// TestTake takes tensors of all types over, in both formats, and works on them.
func TestTake(t *testing.T) {
	d := testdev.Open(t, 0)
	memory := hostMemory(t, d, 4096)
	s := testerr.Must(d.NewStream())(t)
	defer s.Close()
	for typ, code := range map[collective.Type][2]uint8{
		collective.F32: {2, 32}, collective.F16: {2, 16}, collective.F64: {2, 64}, collective.BF16: {4, 16}, collective.I32: {0, 32},
		collective.I64: {0, 64}, collective.U8: {1, 8}, collective.F8E4M3: {10, 8}, collective.F8E5M2: {12, 8},
	} {
		for _, versioned := range []bool{false, true} {
			for _, strides := range [][]int64{nil, {3, 1}} {
				memory.Bytes()[8] = 1
				m := makeTensor(t, dlpacktest.Tensor{
					Versioned: versioned, Data: uintptr(memory.Ptr()), Offset: 8, Code: code[0], Bits: code[1], Shape: []int64{2, 3}, Strides: strides,
				})
				tensor, err := dlpack.Take(d, m.Pointer(), dlpack.Options{Versioned: versioned})
				if err != nil {
					t.Fatal(typ, err)
				}
				got := fmt.Sprint(tensor.Type, tensor.Shape, tensor.Count(), tensor.Buffer.Size(), tensor.Buffer.Ptr())
				want := fmt.Sprint(typ, []int64{2, 3}, 6, 6*typ.Size(), memory.Ptr()+8)
				testcmp.Equal(t, "the tensor", got, want)
				testerr.Report(t, s.Fill(tensor.Buffer, 0, 5, 1))
				testerr.Report(t, s.Synchronize(t.Context()))
				testcmp.Equal(t, "the first byte", memory.Bytes()[8], byte(5))

				_, err = dlpack.Take(d, m.Pointer(), dlpack.Options{Versioned: versioned})
				testerr.Expect(t, err, mscclgo.ErrInvalid, "was taken before")
				deletions(t, m, 0)
				for range 2 {
					testerr.Report(t, tensor.Close())
					deletions(t, m, 1)
				}
			}
		}
	}
}

// TestTakeShapes takes tensors without elements, without dimensions, and with extents of 1,
// whose strides mean nothing.
func TestTakeShapes(t *testing.T) {
	d := testdev.Open(t, 0)
	memory := hostMemory(t, d, 4096)
	for _, c := range []struct {
		shape, strides []int64
		count          uint64
	}{
		{nil, nil, 1}, {[]int64{}, []int64{}, 1}, {[]int64{1, 4, 1}, []int64{77, 1, -5}, 4},
		{[]int64{2, 0, 3}, []int64{9, 9, 9}, 0}, {[]int64{2, 2, 2}, []int64{4, 2, 1}, 8},
	} {
		data := uintptr(memory.Ptr())
		if c.count == 0 {
			data = 0
		}
		m := makeTensor(t, dlpacktest.Tensor{Data: data, Code: 2, Bits: 32, Shape: c.shape, Strides: c.strides, NoDeleter: true})
		tensor, err := dlpack.Take(d, m.Pointer(), dlpack.Options{})
		if err != nil {
			t.Fatal(c, err)
		}
		if tensor.Count() != c.count || (tensor.Buffer == nil) != (c.count == 0) || len(tensor.Shape) != len(c.shape) {
			t.Errorf("a tensor of shape %v has %d elements of shape %v in %v", c.shape, tensor.Count(), tensor.Shape, tensor.Buffer)
		}
		testerr.Report(t, tensor.Close())
	}
}

// TestTakeReadOnly takes a tensor that must not be written only where the caller says so.
func TestTakeReadOnly(t *testing.T) {
	d := testdev.Open(t, 0)
	m := makeTensor(t, dlpacktest.Tensor{Versioned: true, Flags: 1, Data: uintptr(hostMemory(t, d, 64).Ptr()), Code: 2, Bits: 32, Shape: []int64{3}})
	_, err := dlpack.Take(d, m.Pointer(), dlpack.Options{Versioned: true})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the tensor is read-only")
	tensor := testerr.Must(dlpack.Take(d, m.Pointer(), dlpack.Options{Versioned: true, ReadOnly: true}))(t)
	testerr.Report(t, tensor.Close())
	deletions(t, m, 1)
}

// TestTakeDeviceMemory takes a tensor in the memory of a GPU.
func TestTakeDeviceMemory(t *testing.T) {
	if !testdev.CUDA() {
		t.Skip("DLPack has no emulated devices")
	}
	d := testdev.Open(t, 0)
	var number int32
	fmt.Sscanf(d.String(), "cuda:%d", &number)
	b := testerr.Must(gpu.Upload(d, []float32{1, 2, 3}))(t)
	defer b.Close()
	about := dlpacktest.Tensor{Kind: 2, Number: number, Data: uintptr(b.Ptr()), Code: 2, Bits: 32, Shape: []int64{3}}
	tensor := testerr.Must(dlpack.Take(d, makeTensor(t, about).Pointer(), dlpack.Options{}))(t)
	got := make([]float32, 3)
	testerr.Report(t, gpu.CopyOut(got, tensor.Buffer))
	testcmp.Equal(t, "the elements", got, []float32{1, 2, 3})
	testerr.Report(t, tensor.Close())
}

// TestTakeRefuses: a tensor that cannot be used stays with its owner, and the error says
// what to do.
func TestTakeRefuses(t *testing.T) {
	d := testdev.Open(t, 0)
	good := dlpacktest.Tensor{Versioned: true, Data: uintptr(hostMemory(t, d, 4096).Ptr()), Code: 2, Bits: 32, Shape: []int64{2, 3}, Strides: []int64{3, 1}}
	for name, c := range map[string]struct {
		change func(*dlpacktest.Tensor)
		kind   mscclgo.Kind
		says   string
	}{
		"transposed":      {func(a *dlpacktest.Tensor) { a.Strides = []int64{1, 2} }, mscclgo.ErrInvalid, "shape [2 3] with strides [1 2] is not contiguous"},
		"with gaps":       {func(a *dlpacktest.Tensor) { a.Strides = []int64{4, 1} }, mscclgo.ErrInvalid, "make a contiguous copy"},
		"reversed":        {func(a *dlpacktest.Tensor) { a.Strides = []int64{-3, 1} }, mscclgo.ErrInvalid, "not contiguous"},
		"broadcast":       {func(a *dlpacktest.Tensor) { a.Strides = []int64{0, 1} }, mscclgo.ErrInvalid, "not contiguous"},
		"complex":         {func(a *dlpacktest.Tensor) { a.Code, a.Bits = 5, 64 }, mscclgo.ErrUnsupported, "type code 5 with 64 bits"},
		"bool":            {func(a *dlpacktest.Tensor) { a.Code, a.Bits = 6, 8 }, mscclgo.ErrUnsupported, "[f32 f16"},
		"vectors":         {func(a *dlpacktest.Tensor) { a.Lanes = 4 }, mscclgo.ErrUnsupported, "4 lanes"},
		"another GPU":     {func(a *dlpacktest.Tensor) { a.Kind, a.Number = 2, 99 }, mscclgo.ErrInvalid, "the tensor is on cuda:99, and the device is " + d.String()},
		"another machine": {func(a *dlpacktest.Tensor) { a.Kind = 8 }, mscclgo.ErrInvalid, "kind 8"},
		"managed":         {func(a *dlpacktest.Tensor) { a.Kind, a.Data = 13, 1<<20 }, mscclgo.ErrInvalid, ""},
		"no memory":       {func(a *dlpacktest.Tensor) { a.Data = 0 }, mscclgo.ErrInvalid, "has no memory"},
		"freed":           {func(a *dlpacktest.Tensor) { a.Data = 1 << 20 }, mscclgo.ErrInvalid, ""},
		"a small number":  {func(a *dlpacktest.Tensor) { a.Data = 24 }, mscclgo.ErrInvalid, "no memory of 24 bytes at 0x18"},
		"a high address":  {func(a *dlpacktest.Tensor) { a.Data = 1 << 60 }, mscclgo.ErrInvalid, "no memory of 24 bytes"},
		"a huge offset":   {func(a *dlpacktest.Tensor) { a.Offset = math.MaxUint64 - 8 }, mscclgo.ErrInvalid, "no memory of 24 bytes"},
		"more than there": {func(a *dlpacktest.Tensor) { a.Shape, a.Strides = []int64{1 << 54}, nil }, mscclgo.ErrInvalid, ""},
		"negative":        {func(a *dlpacktest.Tensor) { a.Shape = []int64{2, -3} }, mscclgo.ErrInvalid, "the shape is [2 -3]"},
		"huge":            {func(a *dlpacktest.Tensor) { a.Shape = []int64{math.MaxInt64, math.MaxInt64} }, mscclgo.ErrInvalid, "larger than there can be"},
		"many dimensions": {func(a *dlpacktest.Tensor) { a.Shape, a.Strides = slices.Repeat([]int64{1}, 65), nil }, mscclgo.ErrInvalid, "65 dimensions"},
		"no dimensions":   {func(a *dlpacktest.Tensor) { a.Dimensions = -1 }, mscclgo.ErrInvalid, "-1 dimensions"},
		"version 2":       {func(a *dlpacktest.Tensor) { a.Major = 2 }, mscclgo.ErrInvalid, "DLPack 2"},
	} {
		t.Run(name, func(t *testing.T) {
			about := good
			c.change(&about)
			m := makeTensor(t, about)
			for range 2 { // it was not consumed
				_, err := dlpack.Take(d, m.Pointer(), dlpack.Options{Versioned: true})
				testerr.Expect(t, err, c.kind, c.says)
			}
			deletions(t, m, 0)
		})
	}
	_, err := dlpack.Take(d, 0, dlpack.Options{})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "consumed")
	_, err = dlpack.Take(nil, 1, dlpack.Options{})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the device is nil")
	closed := testerr.Must(gpu.Open(d.String()))(t)
	closed.Close()
	_, err = dlpack.Take(closed, makeTensor(t, good).Pointer(), dlpack.Options{Versioned: true})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
	var none *dlpack.Tensor
	testerr.Report(t, none.Close())
}
