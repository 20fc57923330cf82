package cuda

import (
	"bytes"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestLaunch(t *testing.T) {
	d := openDevice(t, 0)
	s, m := newStream(t, d), loadKernels(t, d)
	add := must(m.Kernel("add"))(t)
	want := []backend.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 4}, {Offset: 12, Size: 4}}
	testcmp.Equal(t, "parameters", add.Params(), want)
	const n = 1000
	data := alloc(t, d, 4*n)
	check(t, s.Fill(data.Ptr(), 1, 4*n))
	check(t, s.Launch(add, blocks(4, 256), packed(t, add, data.Ptr(), n-1, 0x02020202)))
	finish(t, s)
	got := readBack(t, d, data.Ptr(), 4*n)
	expected := append(bytes.Repeat([]byte{3}, 4*(n-1)), 1, 1, 1, 1)
	testcmp.Equal(t, "sums", got, expected)

	mixed := must(m.Kernel("mixed"))(t)
	want = []backend.Param{{Offset: 0, Size: 1}, {Offset: 8, Size: 8}, {Offset: 16, Size: 24}, {Offset: 40, Size: 2}}
	testcmp.Equal(t, "parameters", mixed.Params(), want)
	args := make([]byte, 42)
	copy(args[8:], packedPointer(data.Ptr()))
	copy(args[32:], "01234567")
	check(t, s.Launch(mixed, blocks(1, 1), args))
	finish(t, s)
	testcmp.Equal(t, "a struct argument", string(readBack(t, d, data.Ptr(), 8)), "01234567")

	err := s.Launch(add, blocks(1, 1<<20), packed(t, add, data.Ptr(), 0, 0))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "launch add", "1048576")
	check(t, s.Launch(add, blocks(1, 1), packed(t, add, data.Ptr(), 0, 0))) // still usable
	finish(t, s)
}

func packedPointer(p uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(p >> (8 * i))
	}
	return b
}

func TestLaunchAllocatesNothing(t *testing.T) {
	d := openDevice(t, 0)
	s, bump := newStream(t, d), must(loadKernels(t, d).Kernel("bump"))(t)
	args := make([]byte, 0, 8)
	if n := testing.AllocsPerRun(100, func() { check(t, s.Launch(bump, blocks(1, 1), args)) }); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
	finish(t, s)
}

func BenchmarkLaunch(b *testing.B) {
	d := openDevice(b, 0)
	s, add := newStream(b, d), must(loadKernels(b, d).Kernel("add"))(b)
	args := packed(b, add, 0, 0, 0)
	b.ReportAllocs()
	for b.Loop() {
		check(b, s.Launch(add, blocks(1, 32), args))
	}
	finish(b, s)
}

func TestCooperative(t *testing.T) {
	d := openDevice(t, 0)
	if !d.Info().CooperativeLaunch {
		t.Skip("no cooperative launch here")
	}
	s, m := newStream(t, d), loadKernels(t, d)
	bump := must(m.Kernel("bump"))(t)
	counter, size, err := m.Symbol("counter")
	check(t, err)
	if size != 8 {
		t.Fatalf("counter has %d bytes", size)
	}
	write64(t, d, counter, 5)
	resident := must(bump.MaxResidentBlocks(256, 0))(t)
	if resident < d.Info().Multiprocessors {
		t.Fatalf("%d resident blocks on %d multiprocessors", resident, d.Info().Multiprocessors)
	}
	cfg := blocks(uint32(resident), 256)
	cfg.Cooperative = true
	check(t, s.Launch(bump, cfg, nil))
	finish(t, s)
	if got, want := read64(t, d, counter), uint64(5+256*resident); got != want {
		t.Errorf("counted %d, want %d", got, want)
	}
	cfg.Grid[0] += uint32(d.Info().Multiprocessors)
	testerr.Expect(t, s.Launch(bump, cfg, nil), mscclgo.ErrInvalid, "COOPERATIVE_LAUNCH_TOO_LARGE", "MaxResidentBlocks")
}

func TestDynamicShared(t *testing.T) {
	d := openDevice(t, 0)
	s, k := newStream(t, d), must(loadKernels(t, d).Kernel("shared"))(t)
	out := alloc(t, d, 4)
	const size = 64 << 10 // more than the 48 KiB that need no leave
	cfg := blocks(1, 1)
	cfg.DynamicShared = size
	args := packed(t, k, out.Ptr(), size)
	testerr.Expect(t, s.Launch(k, cfg, args), mscclgo.ErrInvalid, "65536 bytes of dynamic shared memory")
	check(t, k.SetMaxDynamicShared(size))
	attributes := must(k.Attributes())(t)
	if attributes.MaxDynamicShared != size || attributes.Registers <= 0 || attributes.MaxThreadsPerBlock < 256 {
		t.Errorf("attributes %+v", attributes)
	}
	check(t, s.Launch(k, cfg, args))
	finish(t, s)
	testcmp.Equal(t, "the bytes read through shared memory", readBack(t, d, out.Ptr(), 4), []byte{0, 0, 1, 0})
	testerr.Expect(t, k.SetMaxDynamicShared(1<<30), mscclgo.ErrInvalid, "at most")
}

func TestNoSuchName(t *testing.T) {
	d := openDevice(t, 0)
	m := loadKernels(t, d)
	_, err := m.Kernel("absent")
	testerr.Expect(t, err, mscclgo.ErrInvalid, `"absent"`, "add, bump, fault, meet, mixed, shared, spin")
	_, _, err = m.Symbol("absent")
	testerr.Expect(t, err, mscclgo.ErrInvalid, `"absent"`)
	for _, name := range []string{"", "a\x00b"} {
		_, err = m.Kernel(name)
		testerr.Expect(t, err, mscclgo.ErrInvalid)
		_, _, err = m.Symbol(name)
		testerr.Expect(t, err, mscclgo.ErrInvalid)
	}
}

func TestWrongImages(t *testing.T) {
	d := openDevice(t, 0)
	_, err := d.LoadModule([]byte("hello"))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "neither PTX")
	_, err = d.LoadModule([]byte(strings.Replace(string(kernels), "ld.global.u32", "ld.nowhere.u32", 1)))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "ptxas", "line")
	_, err = d.LoadModule([]byte(strings.Replace(string(kernels), "sm_80", "sm_999", 1)))
	if err == nil {
		t.Error("PTX for an architecture that does not exist was loaded")
	}
	loadKernels(t, d) // still usable
}
