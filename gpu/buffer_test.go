package gpu_test

import (
	"bytes"
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestAlloc(t *testing.T) {
	d := testdev.Open(t, 0)
	for _, size := range []uint64{1, 7, 4096, 3<<20 + 1} {
		b := alloc(t, d, size)
		// Only memory that can be shared by descriptor is rounded to the granularity.
		whole := !d.Info().DescriptorExport || b.Internal().Capacity()%d.Info().MemoryGranularity == 0
		if b.Size() != size || b.Internal().Capacity() < size || !whole || b.Internal().AllocationOffset() != 0 || b.Device() != d || b.Ptr() == 0 || b.Ptr()%256 != 0 || b.Bytes() != nil {
			t.Errorf("%d bytes: size %d, capacity %d, at %#x", size, b.Size(), b.Internal().Capacity(), b.Ptr())
		}
		want := counting(int(size), 3)
		check(t, gpu.CopyIn(b, want))
		testcmp.Equal(t, "the bytes read back", contents[byte](t, b, int(size)), want)
	}
}

func TestHostBytes(t *testing.T) {
	d := testdev.Open(t, 0)
	b := alloc(t, d, 1000)
	check(t, gpu.CopyIn(b, counting(1000, 1)))
	view, err := b.Slice(100, 50)
	check(t, err)
	host := view.HostBytes()
	if testdev.CUDA() {
		if host != nil {
			t.Errorf("the host is given %d bytes of a GPU's memory", len(host))
		}
		return
	}
	testcmp.Equal(t, "the view", host, counting(50, 101))
	if cap(host) != 50 {
		t.Errorf("the view's capacity is %d", cap(host))
	}
	host[0] = 7
	if got := contents[byte](t, view, 50); got[0] != 7 {
		t.Errorf("the host stored 7, the device has %d", got[0])
	}
	pinned := allocHost(t, d, 10)
	if &pinned.HostBytes()[0] != &pinned.Bytes()[0] {
		t.Error("Bytes and HostBytes of pinned memory differ")
	}
	check(t, b.Close())
	if view.HostBytes() != nil {
		t.Error("closed memory is given to the host")
	}
}

func TestAllocRefuses(t *testing.T) {
	d := testdev.Open(t, 0)
	_, err := d.Alloc(0)
	invalid(t, err, "allocate 0 bytes", name(t))
	_, err = d.AllocHost(0)
	invalid(t, err, "0 bytes of pinned memory", name(t))
	_, err = gpu.Upload(d, []int32{})
	invalid(t, err, "0 bytes")
	_, err = gpu.Upload(d, []*int{nil})
	invalid(t, err, "*int", "pointers")
	_, err = d.Alloc(2 * d.Info().TotalMemory)
	testerr.Expect(t, err, mscclgo.ErrSystem, "allocate", "free", name(t))
	alloc(t, d, 1) // the failure took nothing with it
}

func TestAllocHost(t *testing.T) {
	d := testdev.Open(t, 0)
	b := allocHost(t, d, 1000)
	testcmp.Equal(t, "new pinned memory", b.Bytes(), make([]byte, 1000))
	check(t, gpu.CopyIn(b, counting(1000, 1)))
	view, err := b.Slice(100, 50)
	check(t, err)
	testcmp.Equal(t, "the view", view.Bytes(), counting(50, 101))
	if cap(view.Bytes()) != 50 {
		t.Errorf("the view's capacity is %d", cap(view.Bytes()))
	}
	testcmp.Equal(t, "the bytes of CopyOut", contents[byte](t, view, 50), view.Bytes())
	// The kernel's address and the host's bytes are the same memory.
	s := newStream(t, d)
	check(t, kernel(t, load(t, d), "fill").Launch(s, gpu.Blocks(1, 32), b, 10, 0x01010101))
	synchronize(t, s)
	testcmp.Equal(t, "the memory after the kernel", b.Bytes()[:41], append(bytes.Repeat([]byte{1}, 40), 41))
	_, err = b.Internal().Export()
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "Alloc")
}

func TestSlice(t *testing.T) {
	d := testdev.Open(t, 0)
	b := must[*gpu.Buffer](t)(gpu.Upload(d, counting(100, 0)))
	v, err := b.Slice(10, 50)
	check(t, err)
	w, err := v.Slice(5, 45)
	check(t, err)
	if w.Ptr() != b.Ptr()+15 || w.Size() != 45 || w.Internal().AllocationOffset() != 15 || w.Internal().Capacity() != b.Internal().Capacity() || w.Device() != d {
		t.Errorf("a slice of a slice: %#x of %d bytes at %d", w.Ptr(), w.Size(), w.Internal().AllocationOffset())
	}
	testcmp.Equal(t, "the slice", contents[byte](t, w, 45), counting(45, 15))
	for _, r := range [][2]uint64{{0, 51}, {51, 0}, {50, 1}, {1, 50}, {math.MaxUint64, 1}, {1, math.MaxUint64}, {math.MaxUint64, math.MaxUint64}} {
		_, err := v.Slice(r[0], r[1])
		invalid(t, err, "slice", "50 bytes", name(t))
	}
	end, err := v.Slice(50, 0)
	check(t, err)
	if end.Size() != 0 {
		t.Errorf("an empty slice has %d bytes", end.Size())
	}
	check(t, w.Close()) // a view's Close does nothing
	if got := contents[byte](t, b, 1); got[0] != 0 {
		t.Error("the memory changed")
	}
	check(t, b.Close())
	check(t, b.Close())
	invalid(t, gpu.CopyOut(make([]byte, 1), w), "closed")
	_, err = w.Slice(0, 1)
	invalid(t, err, "closed")
}

func TestHostBytesEndWithClose(t *testing.T) {
	b, err := testdev.Open(t, 0).AllocHost(8)
	check(t, err)
	view, err := b.Slice(0, 8)
	check(t, err)
	check(t, b.Close())
	if b.Bytes() != nil || view.Bytes() != nil {
		t.Error("a closed buffer has bytes")
	}
}

type vector struct {
	X, Y float32
	N    [3]int64
}

func TestCopyInOut(t *testing.T) {
	d := testdev.Open(t, 0)
	b := alloc(t, d, 64)
	want := []vector{{1, 2, [3]int64{3, 4, 5}}, {-1, -2, [3]int64{-3, -4, math.MinInt64}}}
	check(t, gpu.CopyIn(b, want))
	testcmp.Equal(t, "the values", contents[vector](t, b, 2), want)
	check(t, gpu.CopyIn(b, []vector{}))
	check(t, gpu.CopyOut([]vector(nil), b))
	check(t, gpu.CopyIn(b, make([]struct{}, 1000)))
	invalid(t, gpu.CopyIn(b, make([]vector, 3)), "copy in 3 values of gpu_test.vector", "96 bytes", "64 bytes", name(t))
	invalid(t, gpu.CopyOut(make([]vector, 3), b), "copy out 3 values", "64 bytes")
	invalid(t, gpu.CopyIn(b, []string{"text"}), "string", "pointers")
	invalid(t, gpu.CopyOut(make([]struct{ B *gpu.Buffer }, 1), b), "pointers")
	invalid(t, gpu.CopyIn(b, [][]byte{{1}}), "pointers")
	invalid(t, gpu.CopyIn(nil, []byte{1}), "nil")
}

func TestWrap(t *testing.T) {
	d := testdev.Open(t, 0)
	b := must[*gpu.Buffer](t)(gpu.Upload(d, counting(100, 0)))
	w, err := d.Wrap(b.Ptr()+10, 20)
	check(t, err)
	if w.Internal().AllocationOffset() != 10 || w.Internal().Capacity() != b.Internal().Capacity() {
		t.Errorf("wrapped memory is at %d of %d", w.Internal().AllocationOffset(), w.Internal().Capacity())
	}
	testcmp.Equal(t, "wrapped memory", contents[byte](t, w, 20), counting(20, 10))
	file, err := w.Internal().Export()
	if d.Info().DescriptorExport { // then memory from Alloc has no handle
		check(t, err)
		again := must[*gpu.Buffer](t)(d.Internal().Import(file, w.Internal().Capacity()))
		check(t, file.Close())
		testcmp.Equal(t, "the memory, mapped again", contents[byte](t, again, 100), counting(100, 0))
		_, _, err = w.Internal().IPCHandle()
		testerr.Expect(t, err, mscclgo.ErrUnsupported)
	} else {
		testerr.Expect(t, err, mscclgo.ErrUnsupported)
	}
	check(t, w.Close())
	invalid(t, gpu.CopyIn(w, []byte{1}), "closed")
	contents[byte](t, b, 100) // what it wrapped is still there

	for _, bad := range []struct{ ptr, size uint64 }{
		{uint64(b.Ptr()), b.Internal().Capacity() + 1}, {uint64(b.Ptr()) + 1, b.Internal().Capacity()},
		{uint64(b.Ptr()) + 8, math.MaxUint64}, {0, 8}, {0x1000, 8}, {math.MaxUint64 - 7, 8},
	} {
		_, err := d.Wrap(gpu.Ptr(bad.ptr), bad.size)
		invalid(t, err, name(t))
	}
	_, err = d.Wrap(b.Ptr(), 0)
	invalid(t, err, name(t), "the size must not be 0")
}

// TestWrapHost: kernels and copies reach memory of the host that is not the device's, also
// memory of Go's heap, and it stays its owner's.
func TestWrapHost(t *testing.T) {
	d := testdev.Open(t, 0)
	s, fill := newStream(t, d), kernel(t, load(t, d), "fill")
	mapped, err := unix.Mmap(-1, 0, 100_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(t, err)
	pinned := must[*gpu.Buffer](t)(d.AllocHost(20_000))
	for what, memory := range map[string][]byte{
		"a mapping": mapped[12:90_000], "Go's heap": make([]byte, 5000), "memory that is pinned": pinned.Bytes()[8:10_000],
	} {
		b := must[*gpu.Buffer](t)(d.WrapHost(memory))
		part := must[*gpu.Buffer](t)(d.WrapHost(memory[100:200]))
		if b.Size() != uint64(len(memory)) || &b.Bytes()[0] != &memory[0] || part.Bytes() == nil {
			t.Errorf("%s of %d bytes is a buffer of %d", what, len(memory), b.Size())
		}
		memory[0] = 7
		check(t, s.Copy(b, 1, b, 0, 1))
		check(t, fill.Launch(s, gpu.Blocks(1, 32), part, 1, uint32(0x01020304)))
		synchronize(t, s)
		testcmp.Equal(t, what, []byte{memory[0], memory[1], memory[100], memory[103]}, []byte{7, 7, 4, 1})
		_, err := b.Internal().Export()
		testerr.Expect(t, err, mscclgo.ErrUnsupported)
		check(t, part.Close())
		check(t, s.Fill(b, 100, 9, 1)) // still pinned
		synchronize(t, s)
		check(t, b.Close())
		testcmp.Equal(t, what+" after Close", memory[100], byte(9))
	}
	check(t, unix.Munmap(mapped))
	_, err = d.WrapHost(mapped)
	testerr.Expect(t, err, mscclgo.ErrInvalid)
	_, err = d.WrapHost(nil)
	invalid(t, err, name(t), "the size must not be 0")
}

// TestWrapHostUnclosed drops buffers for memory of Go's heap: what is pinned stays so, and the
// memory of one that was closed is freed.
func TestWrapHostUnclosed(t *testing.T) {
	d := testdev.Open(t, 0)
	freed := make(chan bool, 2)
	wrap := func(closed bool) {
		memory := make([]byte, 1<<16)
		runtime.AddCleanup(&memory[0], func(closed bool) { freed <- closed }, closed)
		b, err := d.WrapHost(memory)
		check(t, err)
		if closed {
			check(t, b.Close())
		}
	}
	wrap(false)
	wrap(true)
	for range 10 {
		runtime.GC() // which would panic
	}
	select {
	case closed := <-freed:
		if !closed {
			t.Error("the memory of a buffer that is not closed is freed")
		}
	case <-time.After(10 * time.Second):
		t.Error("the memory of a buffer that is closed is not freed")
	}
	if len(freed) > 0 {
		t.Error("the memory of both buffers is freed")
	}
}

func TestForeignMemory(t *testing.T) {
	d := testdev.Open(t, 0)
	b, free, err := testdev.Foreign(d, 1000)
	if !testdev.CUDA() {
		testerr.Expect(t, err, mscclgo.ErrUnsupported)
		_, err = d.Internal().OpenIPC([64]byte{1}, 8)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, name(t))
	} else {
		check(t, err)
		defer free()
		check(t, gpu.CopyIn(b, counting(1000, 9)))
		part, err := b.Slice(100, 10)
		check(t, err)
		_, start, err := b.Internal().IPCHandle()
		check(t, err)
		if _, offset, err := part.Internal().IPCHandle(); err != nil || offset != start+100 {
			t.Errorf("a slice at 100 is at %d of the handle, its buffer at %d: %v", offset, start, err)
		}
		if _, err = d.Internal().OpenIPC([64]byte{1}, 8); err == nil {
			t.Error("opened a handle of nothing")
		}
	}
	_, err = d.Internal().OpenIPC([64]byte{}, 0)
	invalid(t, err, "size")
}

// TestForeignKinds: memory of every kind can be wrapped and used, and what other processes
// cannot map says what to set.
func TestForeignKinds(t *testing.T) {
	if !testdev.CUDA() {
		t.Skip("an emulated device has one allocator")
	}
	d := testdev.Open(t, 0)
	const size = 5 << 20 // more than a mapping
	for kind, says := range map[testdev.Kind]string{
		testdev.Pool: "backend:cudaMallocAsync", testdev.Expandable: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
	} {
		b, free, err := testdev.ForeignOf(d, kind, size)
		check(t, err)
		defer free()
		want := counting(size, 3)
		check(t, gpu.CopyIn(b, want))
		testcmp.Equal(t, "the memory", contents[byte](t, b, size), want)
		_, err = b.Internal().Export()
		testerr.Expect(t, err, mscclgo.ErrUnsupported)
		_, _, err = b.Internal().IPCHandle()
		testerr.Expect(t, err, mscclgo.ErrUnsupported, says)
	}
}

// TestImport maps memory a second time in this process.
func TestImport(t *testing.T) {
	d, other := testdev.Open(t, 0), testdev.Open(t, 0)
	if !d.Info().DescriptorExport {
		t.Skip("no memory can be shared by descriptor")
	}
	b := must[*gpu.Buffer](t)(gpu.Upload(d, counting(5000, 1)))
	part, err := b.Slice(100, 10) // which exports the whole
	check(t, err)
	file, err := part.Internal().Export()
	check(t, err)
	again := must[*gpu.Buffer](t)(other.Internal().Import(file, b.Internal().Capacity()))
	check(t, file.Close())
	if again.Size() != b.Internal().Capacity() || again.Ptr() == b.Ptr() || again.Device() != other {
		t.Errorf("imported %d bytes at %#x", again.Size(), again.Ptr())
	}
	testcmp.Equal(t, "the mapping", contents[byte](t, again, 5000), counting(5000, 1))
	check(t, gpu.CopyIn(again, []byte{77}))
	if contents[byte](t, b, 1)[0] != 77 {
		t.Error("what was written to the mapping is not in the memory")
	}
	_, err = again.Internal().Export()
	testerr.Expect(t, err, mscclgo.ErrUnsupported)
	check(t, b.Close()) // the mapping keeps the memory alive
	testcmp.Equal(t, "the mapping after the exporter closed the memory", contents[byte](t, again, 5000)[1:], counting(4999, 2))
}

func TestImportRefuses(t *testing.T) {
	d := testdev.Open(t, 0)
	if !d.Info().DescriptorExport {
		t.Skip("no memory can be shared by descriptor")
	}
	b := alloc(t, d, 1)
	file, err := b.Internal().Export()
	check(t, err)
	defer file.Close()
	_, err = d.Internal().Import(file, 0)
	invalid(t, err, "size", name(t))
	_, err = d.Internal().Import(file, b.Internal().Capacity()-1)
	invalid(t, err, name(t))
	_, err = d.Internal().Import(file, 64*b.Internal().Capacity())
	invalid(t, err, name(t))
	_, err = d.Internal().Import(nil, b.Internal().Capacity())
	invalid(t, err, "descriptor")
	noise, err := os.CreateTemp(t.TempDir(), "noise")
	check(t, err)
	defer noise.Close()
	check(t, noise.Truncate(int64(b.Internal().Capacity())))
	if _, err = d.Internal().Import(noise, b.Internal().Capacity()); err == nil {
		t.Error("imported a file of a disk")
	}
}

// TestAccess uses one device's memory on another, which may be the same GPU.
func TestAccess(t *testing.T) {
	d, other := testdev.Open(t, 0), testdev.Open(t, 1)
	if !other.CanAccess(d.Info().UUID) {
		t.Skipf("%v cannot access %v", other, d)
	}
	b := must[*gpu.Buffer](t)(gpu.Upload(d, counting(400, 0)))
	s := newStream(t, other)
	fill := kernel(t, load(t, other), "fill")
	invalid(t, fill.Launch(s, gpu.Blocks(1, 1), b, 1, 0), "argument 1", "Access", d.String())
	invalid(t, s.Fill(b, 0, 0, 1), "Access", d.String())

	part, err := b.Slice(200, 200)
	check(t, err)
	v, err := other.Access(part)
	check(t, err)
	if v.Device() != other || v.Size() != 200 || v.Internal().AllocationOffset() != 200 {
		t.Errorf("the view is of %v, %d bytes at %d", v.Device(), v.Size(), v.Internal().AllocationOffset())
	}
	check(t, fill.Launch(s, gpu.Blocks(1, 32), v, 2, 0x05050505))
	own := alloc(t, other, 400)
	check(t, s.Copy(own, 0, v, 0, 200))
	check(t, s.Copy(v, 100, own, 50, 10))
	synchronize(t, s)
	want := counting(400, 0)
	copy(want[200:], bytes.Repeat([]byte{5}, 8))
	copy(want[300:310], want[250:260])
	testcmp.Equal(t, "the memory", contents[byte](t, b, 400), want)
	check(t, v.Close()) // does not free the other's memory
	contents[byte](t, b, 400)
	if same, err := d.Access(b); same != b || err != nil {
		t.Errorf("access to its own memory returned %v, %v", same, err)
	}

	pinned := allocHost(t, d, 8)
	check(t, fill.Launch(s, gpu.Blocks(1, 1), pinned, 2, 7)) // needs no Access
	theirs, err := other.Access(pinned)
	check(t, err)
	check(t, s.Fill(theirs, 0, 9, 1))
	synchronize(t, s)
	testcmp.Equal(t, "the pinned memory", pinned.Bytes(), []byte{9, 0, 0, 0, 7, 0, 0, 0})
	if theirs.Device() != other {
		t.Errorf("the view belongs to %v", theirs.Device())
	}

	closed, err := d.Alloc(8)
	check(t, err)
	check(t, closed.Close())
	_, err = other.Access(closed)
	invalid(t, err, "closed")
	_, err = other.Access(nil)
	invalid(t, err, "nil")
}
