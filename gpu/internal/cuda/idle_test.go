package cuda

import (
	"testing"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestFreedWhenIdle: pinned memory is freed when no stream has work or captures, at the next
// call that may free some. The fake driver refuses to free it sooner, and counts it.
func TestFreedWhenIdle(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DHOSTS")).Open(0))(t)
	closeAtEnd(t, d.Close)
	s, other := must(d.NewStream())(t), must(d.NewStream())(t)
	closeAtEnd(t, other.Close)
	pinned := func() backend.HostMemory { return must(d.AllocHost(64))(t) }
	expect := func(when string, want uint64) {
		t.Helper()
		got, _, err := d.MemoryInfo()
		check(t, err)
		testcmp.Equal(t, "the pieces of pinned memory "+when, got, want)
	}
	const busy, captures, idle, allIdle = 1, 2, 3, 4
	state := func(s backend.Stream, bytes uint64) { check(t, s.Copy(8, 16, bytes)) }

	a, b, c := pinned(), pinned(), pinned()
	state(s, busy)
	check(t, a.Free())
	check(t, a.Free())
	expect("while a stream has work", 3)
	state(s, captures)
	check(t, b.Free())
	expect("while a stream captures", 3)
	rest := pinned()
	expect("with another", 4)
	state(s, idle)
	check(t, c.Free())
	expect("when no stream has work", 1)
	state(s, busy)
	check(t, s.Close())
	check(t, rest.Free())
	expect("while a closed stream has work", 1)
	state(other, allIdle)
	check(t, pinned().Free())
	expect("when that has ended", 0)
}

// TestFreeBesideKernel: while a kernel waits for a copy, memory is freed and the copy queued.
// The driver's call would wait for the kernel, and the copy for the call.
func TestFreeBesideKernel(t *testing.T) {
	d := openDevice(t, 0)
	spin := must(loadKernels(t, d).Kernel("spin"))(t)
	s, copies := newStream(t, d), newStream(t, d)
	flag := alloc(t, d, 8)
	write64(t, d, flag.Ptr(), 0)
	one, unused := must(d.AllocHost(8))(t), must(d.AllocHost(64))(t)
	closeAtEnd(t, one.Free)
	one.Bytes()[0] = 1
	check(t, s.Launch(spin, blocks(1, 1), packed(t, spin, flag.Ptr(), spinLimit)))
	check(t, unused.Free())
	if done := must(s.Query())(t); done {
		t.Error("the memory was freed when the kernel had ended by itself")
	}
	check(t, copies.Copy(flag.Ptr(), one.Ptr(), 8))
	finish(t, s)
}
