package cuda

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestForeignHandles: streams and events of other code are found and left alone, and no
// capture of theirs is disturbed. The fake driver has the streams.
func TestForeignHandles(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DFOREIGN")).Open(0))(t)
	closeAtEnd(t, d.Close)
	wrap := func(handle uintptr) backend.Stream {
		t.Helper()
		s := must(d.WrapStream(handle))(t)
		closeAtEnd(t, s.Close) // the fake refuses to destroy it
		return s
	}
	const legacy, perThread, plain, elsewhere, capturing = 1, 2, 0x100, 0x200, 0x300
	captures := map[uintptr]uint64{}
	for _, handle := range []uintptr{perThread, plain, capturing} {
		s := wrap(handle)
		testcmp.Equal(t, "the handle", s.Handle(), handle)
		captures[handle] = must(s.Capture())(t)
		for range 2 * 64 { // so that it is asked whether the stream is busy
			check(t, s.Copy(8, 16, 4))
		}
	}
	asked := wrap(plain)
	if n := testing.AllocsPerRun(100, func() { asked.Capture() }); n != 0 {
		t.Errorf("to ask whether a stream captures allocates %v times", n)
	}
	testcmp.Equal(t, "the captures", captures, map[uintptr]uint64{perThread: 0, plain: 0, capturing: 77})

	if done, err := wrap(plain).Query(); !done || err != nil {
		t.Errorf("a stream without work is done: %v, %v", done, err)
	}
	_, err := wrap(capturing).Query()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "end the capture first")
	testerr.Expect(t, wrap(capturing).Synchronize(t.Context()), mscclgo.ErrInvalid, "end the capture first")
	testcmp.Equal(t, "what the null stream is", wrap(0).Handle(), uintptr(legacy))
	_, err = wrap(legacy).Capture()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "legacy default stream cannot be used while", "use another stream")
	_, err = wrap(legacy).Query()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "legacy default stream")
	_, err = d.WrapStream(elsewhere)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "wrap stream 0x200 on cuda:0", "not the primary one")

	e := must(d.WrapEvent(0x400))(t)
	closeAtEnd(t, e.Close)
	testcmp.Equal(t, "the event's handle", e.Handle(), uintptr(0x400))
	check(t, wrap(capturing).WaitAcross(e))
	check(t, wrap(plain).WaitEvent(e))
}

// TestRecordAcross: an event outside is recorded by one node of each graph, behind all that was
// captured before the last call, with no edge from what other nodes follow in one chain.
func TestRecordAcross(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DFOREIGN")).Open(0))(t)
	closeAtEnd(t, d.Close)
	s, other := must(d.WrapStream(0x300))(t), must(d.WrapStream(0x300))(t)
	closeAtEnd(t, s.Close)
	closeAtEnd(t, other.Close)
	e := must(d.WrapEvent(0x400))(t)
	closeAtEnd(t, e.Close)
	const behind, beside, newCapture = 1000, 2000, 3000 // see driver.c
	work := func(dst uint64) {
		t.Helper()
		check(t, s.Copy(dst, 8, 1))
	}
	follows := func(want ...byte) {
		t.Helper()
		got, err := unix.Mmap(-1, 0, 16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		check(t, err)
		defer unix.Munmap(got)
		check(t, s.Copy(4000, uint64(uintptr(unsafe.Pointer(&got[0]))), 16))
		var nodes []byte
		for node, follows := range got {
			if follows == 1 {
				nodes = append(nodes, byte(node))
			}
		}
		testcmp.Equal(t, "the nodes that the event follows", nodes, want)
	}
	check(t, s.RecordAcross(e))
	follows() // nothing was captured
	work(behind + 1)
	check(t, s.RecordAcross(e))
	follows(1)
	check(t, s.RecordAcross(e)) // again does no harm
	work(behind + 2)
	work(behind + 3)
	check(t, other.RecordAcross(e)) // the same capture
	follows(3)                      // which follows 1
	work(beside + 4)
	for range 2 {
		check(t, s.RecordAcross(e))
		follows(3, 4)
	}
	work(behind + 6) // behind both
	check(t, s.RecordAcross(e))
	follows(3, 4, 6)
	work(behind + 7)
	check(t, s.RecordAcross(e))
	follows(3, 4, 7)

	work(newCapture)
	work(behind + 5)
	check(t, s.RecordAcross(e))
	follows(5)

	plain := must(d.WrapStream(0x100))(t)
	closeAtEnd(t, plain.Close)
	testerr.Expect(t, plain.RecordAcross(e), mscclgo.ErrInvalid, "record an event")
}

// TestForeignMemory: memory of other code is found as a whole, and what cannot be shared
// says what to set.
func TestForeignMemory(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DFOREIGN")).Open(0))(t)
	closeAtEnd(t, d.Close)
	for _, c := range []struct{ ptr, size, base, all uint64 }{
		{0x10010, 8, 0x10000, 0x1000},
		{0x10010, 0x2000, 0x10000, 0x1000}, // the caller sees that it is too small
		{0x20ff8, 8, 0x20000, 0x1000},
		{0x20ff8, 9, 0x20000, 0x2000},
		{0x20000, 0x3000, 0x20000, 0x3000},
		{0x21000, 0x2001, 0x21000, 0x2000}, // not what is reserved by itself
		{0x50fff, 2, 0x50000, 0x1000},
	} {
		base, all, err := d.Range(c.ptr, c.size)
		check(t, err)
		if base != c.base || all != c.all {
			t.Errorf("the range of %d bytes at %#x is %#x+%#x, want %#x+%#x", c.size, c.ptr, base, all, c.base, c.all)
		}
	}
	_, _, err := d.Range(0x60000, 1)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "find the allocation around 0x60000")

	fd, err := d.Export(0x50000, 0x1000)
	check(t, err)
	testcmp.Equal(t, "the descriptor", fd, 42)
	for _, bad := range []struct{ ptr, size uint64 }{{0x10000, 0x1000}, {0x20000, 0x1000}, {0x50000, 0x2000}, {0x50008, 0xff8}} {
		_, err := d.Export(bad.ptr, bad.size)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "the memory has no descriptor")
	}
	for ptr, says := range map[uint64]string{
		0x10000: "only memory from cudaMalloc", 0x20008: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
		0x30000: "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF", 0x40000: "managed memory cannot",
	} {
		_, _, err := d.IPCHandle(ptr)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, says)
	}
}

// TestWrapHost pins every page once, whatever ranges are wrapped, and unpins what others have
// not pinned.
func TestWrapHost(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DFOREIGN")).Open(0))(t)
	closeAtEnd(t, d.Close)
	pages, err := unix.Mmap(-1, 0, 16*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(t, err)
	defer unix.Munmap(pages)
	wrap := func(from, to int) backend.HostMemory {
		t.Helper()
		m := must(d.WrapHost(pages[from:to]))(t)
		if len(m.Bytes()) != to-from || &m.Bytes()[0] != &pages[from] {
			t.Errorf("bytes %d to %d are wrapped as others", from, to)
		}
		return m
	}
	whole := wrap(0, 100)                 // page 0
	inner := wrap(50, 60)                 // the same
	over := wrap(4000, 2*4096+1)          // pages 0 to 2
	theirs := wrap(3*4096+8, 3*4096+4000) // page 3, which others have pinned
	behind := wrap(5*4096, 6*4096)        // page 5
	across := wrap(2*4096, 3*4096)        // page 2
	gap := wrap(4*4096, 7*4096)           // pages 4 to 6
	driver := wrap(8*4096, 9*4096)        // page 8, which the driver has allocated
	for _, m := range []backend.HostMemory{whole, over, behind, theirs, inner, gap, driver, across} {
		check(t, m.Free())
		check(t, m.Free())
	}
	again := wrap(0, 3*4096) // nothing is left of the ranges before
	check(t, again.Free())
	_, err = d.WrapHost(pages[3*4096 : 5*4096]) // of which others have pinned a part
	testerr.Expect(t, err, mscclgo.ErrInvalid, "a part of it is pinned already")
}
