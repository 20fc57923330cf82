package gpu_test

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

type pair struct {
	A uint32
	B uint64
}

type row struct{ Values [3]uint16 }

type (
	celsius float32
	count   int32
)

// TestArguments passes an argument of each kind.
func TestArguments(t *testing.T) {
	d := testdev.Open(t, 0)
	s, out := newStream(t, d), alloc(t, d, 11*8)
	k := kernel(t, load(t, d), "arguments")
	launch := func(args ...any) []uint64 {
		t.Helper()
		check(t, k.Launch(s, gpu.Blocks(1, 1), args...))
		synchronize(t, s)
		return contents[uint64](t, out, 11)
	}
	u := func(v int64) uint64 { return uint64(v) }

	got := launch(out, int8(-5), uint16(65535), int32(-7), uint64(1<<63), float32(1.5), -2.25, true,
		pair{11, 1 << 40}, row{[3]uint16{1, 2, 3}}, out.Ptr()+3)
	want := []uint64{u(-5), 65535, u(-7), 1 << 63, 1536, u(-2304), 1, 11, 1 << 40, 1 | 2<<16 | 3<<32, uint64(out.Ptr()) + 3}
	testcmp.Equal(t, "what the kernel got", got, want)

	// Integers without a size, named types, an array for a struct, null pointers.
	got = launch(out, -128, 65535, count(-1), 12, celsius(-1), 0.5, false,
		pair{}, [3]uint16{7, 8, 9}, (*gpu.Buffer)(nil))
	want = []uint64{u(-128), 65535, u(-1), 12, u(-1024), 512, 0, 0, 0, 7 | 8<<16 | 9<<32, 0}
	testcmp.Equal(t, "what the kernel got", got, want)
	got = launch(out, uint(127), uint(9), uint32(math.MaxInt32), gpu.Ptr(12), float32(0), 0.0, true,
		struct {
			A int32
			B gpu.Ptr
		}{3, 4}, row{}, gpu.Ptr(0))
	want = []uint64{127, 9, math.MaxInt32, 12, 0, 0, 1, 3, 4, 0, 0}
	testcmp.Equal(t, "what the kernel got", got, want)

	wide := [250]uint64{}
	total := uint64(0)
	for i := range wide {
		wide[i] = uint64(i * i)
		total += wide[i]
	}
	check(t, kernel(t, load(t, d), "sum").Launch(s, gpu.Blocks(1, 1), wide, out))
	synchronize(t, s)
	if got := contents[uint64](t, out, 1)[0]; got != total {
		t.Errorf("the wide argument sums to %d, not %d", got, total)
	}
}

// TestArgumentsRefused launches with one wrong argument at a time.
func TestArgumentsRefused(t *testing.T) {
	d := testdev.Open(t, 0)
	s, out := newStream(t, d), alloc(t, d, 11*8)
	k := kernel(t, load(t, d), "arguments")
	right := []any{out, int8(1), uint16(1), int32(1), uint64(1), float32(1), 1.0, true, pair{}, row{}, gpu.Ptr(0)}
	closed, err := d.Alloc(8)
	check(t, err)
	check(t, closed.Close())
	check(t, gpu.CopyIn(out, []uint64{99}))

	for _, c := range []struct {
		at   int
		arg  any
		says string
	}{
		{0, nil, "nil"},
		{0, int32(1), "an int32 has 4"},
		{0, []uint64{1}, "[]uint64"},
		{0, new(uint64), "*uint64"},
		{0, closed, "closed"},
		{0, "text", "string"},
		{1, int16(1), "int16 has 2"},
		{1, -129, "-129 does not fit"},
		{1, 256, "256 does not fit"},
		{2, 65536, "65536 does not fit"},
		{2, -32769, "-32769 does not fit"},
		{2, uint(1 << 16), "65536 does not fit"},
		{3, uint64(1), "a uint64 has 8"},
		{3, 1 << 32, "4294967296 does not fit"},
		{3, -1<<31 - 1, "-2147483649 does not fit"},
		{3, uint(1 << 32), "4294967296 does not fit"},
		{3, 1.0, "a float64 has 8"},
		{4, uint32(1), "a uint32 has 4"},
		{4, float32(1), "a float32 has 4"},
		{5, 1.0, "a float64 has 8"},
		{6, float32(1), "a float32 has 4"},
		{7, int64(1), "an int64 has 8"},
		{8, pair{}.A, "the parameter has 16 bytes"},
		{8, 1, "the parameter has 16 bytes"},
		{8, &pair{}, "pointers"},
		{8, struct {
			A uint32
			B *gpu.Buffer
		}{1, out}, "Ptr"},
		{9, [4]uint16{}, "[4]uint16 has 8"},
		{9, []uint16{1, 2, 3}, "[]uint16"},
		{9, struct{}{}, "struct {} has 0"},
		{10, any(nil), "nil"},
		// Those below have the size of the parameter.
		{0, uint64(1), "(uint64_t* out): the parameter takes a pointer, *gpu.Buffer or gpu.Ptr, not a uint64 (1)"},
		{0, 0, "(uint64_t* out): the parameter takes a pointer"},
		{0, 1.5, "takes a pointer"},
		{0, [1]uint64{1}, "takes a pointer"},
		{0, complex64(1), "takes a pointer"},
		{1, uint8(1 << 7), "(signed char i8): 128 does not fit into a signed number of 1 bytes"},
		{1, 128, "128 does not fit"},
		{1, true, "takes an integer, not a bool (true)"},
		{2, -1, "(uint16_t u16): -1 is negative, and the parameter is unsigned"},
		{2, int16(-1), "-1 is negative"},
		{3, float32(1), "(int32_t i32): the parameter takes an integer, not a float32 (1)"},
		{3, celsius(1), "not a gpu_test.celsius (1)"},
		{3, uint32(1 << 31), "2147483648 does not fit"},
		{3, uint(1 << 31), "2147483648 does not fit"},
		{4, int64(-1), "(uint64_t u64): -1 is negative"},
		{4, -1, "-1 is negative"},
		{4, complex64(1), "takes an integer"},
		{4, out, "takes an integer, not a *gpu.Buffer"},
		{5, 1, "(float f32): the parameter takes a float32, not an int (1)"},
		{5, uint(1), "takes a float32, not a uint (1)"},
		{5, count(1), "takes a float32"},
		{6, 1, "(double f64): the parameter takes a float64, not an int (1)"},
		{6, out.Ptr(), "takes a float64, not a gpu.Ptr"},
		{7, uint8(1), "(bool b): the parameter takes a bool, not a uint8 (1)"},
		{7, 1, "takes a bool"},
		{10, uint64(0), "(const void* pointer): the parameter takes a pointer"},
	} {
		args := slices.Clone(right)
		args[c.at] = c.arg
		invalid(t, k.Launch(s, gpu.Blocks(1, 1), args...), "launch arguments", name(t), c.says)
	}
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), right[:10]...), "10 arguments given, and the kernel takes 11")
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), append(slices.Clone(right), 1)...), "12 arguments given")
	invalid(t, k.Launch(s, gpu.Blocks(1, 1)), "0 arguments given")
	synchronize(t, s)
	if got := contents[uint64](t, out, 1)[0]; got != 99 {
		t.Error("a refused launch ran")
	}
}

// TestUndescribed launches a kernel of an image that does not tell the types of
// parameters, as images of other compilers: their sizes are checked, and nothing else.
func TestUndescribed(t *testing.T) {
	d := testdev.Open(t, 0)
	s, out := newStream(t, d), alloc(t, d, 11*8)
	plain, described, err := signature.Split(image(t, d))
	check(t, err)
	if described == nil {
		t.Fatal("the image of package devicecode does not tell the types")
	}
	k := kernel(t, must[*gpu.Module](t)(d.LoadModule(plain)), "arguments")
	for i, p := range k.Internal().Params() {
		if p.Name != "" || p.Type.Name != "" || p.Size == 0 {
			t.Errorf("parameter %d is %+v", i, p)
		}
	}
	check(t, k.Launch(s, gpu.Blocks(1, 1), out.Ptr(), uint8(255), -1, uint32(1), -1, 1, 1, 1, pair{}, row{}, uint64(7)))
	synchronize(t, s)
	if got := contents[uint64](t, out, 11)[10]; got != 7 {
		t.Errorf("the last argument is %d", got)
	}
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), uint32(0), int8(0), 0, 0, 0, 0, 0, 0, pair{}, row{}, gpu.Ptr(0)), "argument 1 of 11: the parameter has 8 bytes")
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), out, 0, 0, 0, 0, 0, 0, 0, 0, row{}, gpu.Ptr(0)), "argument 9 of 11: the parameter has 16 bytes")
}

// TestDescriptionDamaged loads images whose description of the parameters is damaged or
// is of other kernels.
func TestDescriptionDamaged(t *testing.T) {
	d := testdev.Open(t, 0)
	good := image(t, d)
	plain, described, err := signature.Split(good)
	check(t, err)
	damaged := slices.Clone(good)
	damaged[len(plain)+40] ^= 1
	_, err = d.LoadModule(damaged)
	invalid(t, err, "damaged", "parameters")
	_, err = d.LoadModule(good[len(plain):])
	invalid(t, err)

	for i := range described {
		if described[i].Name == "fill" {
			described[i].Params = described[i].Params[:2]
		}
	}
	k := kernel(t, must[*gpu.Module](t)(d.LoadModule(signature.Append(plain, described))), "fill")
	if diff := cmp.Diff([]string{"  8", "  8", "  4"}, parameters(k)); diff != "" {
		t.Error(diff)
	}
}

// parameters returns the name, the type and the bytes of each parameter.
func parameters(k *gpu.Kernel) (all []string) {
	for _, p := range k.Internal().Params() {
		all = append(all, fmt.Sprint(p.Name, " ", p.Type.Name, " ", p.Size))
	}
	return all
}

// TestParameters has the names and types of the source.
func TestParameters(t *testing.T) {
	k := kernel(t, load(t, testdev.Open(t, 0)), "arguments")
	want := []string{
		"out uint64_t* 8", "i8 signed char 1", "u16 uint16_t 2", "i32 int32_t 4", "u64 uint64_t 8", "f32 float 4", "f64 double 8",
		"b bool 1", "pair Pair 16", "row Row 6", "pointer const void* 8",
	}
	if diff := cmp.Diff(want, parameters(k)); diff != "" {
		t.Error(diff)
	}
}

func TestShapes(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	k := kernel(t, load(t, d), "nothing")
	if k.Name() != "nothing" {
		t.Errorf("the kernel's name is %q", k.Name())
	}
	most := d.Info().MaxThreadsPerBlock
	for _, good := range []gpu.LaunchConfig{
		{}, gpu.Blocks(1, most), gpu.Blocks(100, 32),
		{Grid: gpu.Dim3{X: 2, Y: 3, Z: 4}, Block: gpu.Dim3{X: 4, Y: 2, Z: 8}},
		{Block: gpu.Dim3{X: 1, Z: 64}}, {DynamicShared: 1024},
	} {
		check(t, k.Launch(s, good))
	}
	synchronize(t, s)
	for _, bad := range []gpu.LaunchConfig{
		gpu.Blocks(0, 32), gpu.Blocks(32, 0), {Grid: gpu.Dim3{Y: 2}}, {Block: gpu.Dim3{Z: 64}},
		gpu.Blocks(1, most+1), gpu.Blocks(-1, 32), gpu.Blocks(1, -32), gpu.Blocks(math.MaxInt, 1), gpu.Blocks(1, math.MaxInt),
		{Grid: gpu.Dim3{X: 1, Y: 1 << 16}}, {Grid: gpu.Dim3{X: 1, Z: 1 << 16}}, {Block: gpu.Dim3{X: 1, Z: 65}}, {Grid: gpu.Dim3{Z: math.MinInt}},
		{Block: gpu.Dim3{X: most, Y: 2}}, {DynamicShared: -1}, {DynamicShared: d.Info().MaxSharedPerBlock + 1},
		{DynamicShared: math.MaxInt},
	} {
		invalid(t, k.Launch(s, bad), "launch nothing", name(t))
	}
	invalid(t, k.Launch(newStream(t, testdev.Open(t, 1)), gpu.Blocks(1, 1)), "stream", name(t))
	invalid(t, k.Launch(nil, gpu.Blocks(1, 1)), "nil")
}

// shared has a handle for kernels, as channels have.
type shared struct{ d *gpu.Device }

func (shared) Set() uint64 { return 7 }

// TestArgumentWithPointers passes what a kernel cannot take: the error names what it takes instead.
func TestArgumentWithPointers(t *testing.T) {
	d := testdev.Open(t, 0)
	k, s := kernel(t, load(t, d), "reversed"), newStream(t, d)
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), &shared{d}, 1), "*gpu_test.shared holds Go pointers", "pass what its Set() returns")
	invalid(t, k.Launch(s, gpu.Blocks(1, 1), new(int), 1), "use the Ptr of buffers")
}

func TestDynamicShared(t *testing.T) {
	d := testdev.Open(t, 0)
	s := newStream(t, d)
	k := kernel(t, load(t, d), "reversed")
	const n = 15_000 // 60 kB, more than a kernel may use before it asks
	out := alloc(t, d, 4*n)
	launch := func() error {
		return k.Launch(s, gpu.LaunchConfig{Block: gpu.Dim3{X: 64}, DynamicShared: 4 * n}, out, n)
	}
	invalid(t, launch(), "reversed", name(t), "SetMaxDynamicShared")
	most := d.Info().MaxSharedPerBlock
	for _, bad := range []int{-1, most + 1, math.MaxInt} {
		invalid(t, k.SetMaxDynamicShared(bad), "reversed", name(t))
	}
	check(t, k.SetMaxDynamicShared(4*n))
	if a, err := k.Attributes(); err != nil || a.MaxDynamicShared != 4*n || a.StaticShared != 0 || a.MaxThreadsPerBlock < 64 {
		t.Errorf("the kernel's attributes are %+v, %v", a, err)
	}
	check(t, launch())
	synchronize(t, s)
	for i, v := range contents[uint32](t, out, n) {
		if v != uint32(n-1-i) {
			t.Fatalf("element %d is %d", i, v)
		}
	}
	check(t, k.SetMaxDynamicShared(most))
	few, err := k.MaxResidentBlocks(64, most)
	check(t, err)
	many, err := k.MaxResidentBlocks(64, 0)
	check(t, err)
	if few < 1 || few > many {
		t.Errorf("%d blocks are resident with all shared memory, %d with none", few, many)
	}
}

// TestLaunchBounds asks for more threads than a kernel's bounds allow.
func TestLaunchBounds(t *testing.T) {
	d := testdev.Open(t, 0)
	s, out := newStream(t, d), alloc(t, d, 4)
	k := kernel(t, load(t, d), "bounded")
	a, err := k.Attributes()
	check(t, err)
	if a.MaxThreadsPerBlock != 64 {
		t.Errorf("the kernel's blocks can have %d threads", a.MaxThreadsPerBlock)
	}
	for threads, some := range map[int]bool{64: true, 65: false, 128: false} {
		if n, err := k.MaxResidentBlocks(threads, 0); (n > 0) != some || err != nil {
			t.Errorf("%d blocks of %d threads are resident, %v", n, threads, err)
		}
	}
	check(t, k.Launch(s, gpu.Blocks(1, 64), out))
	synchronize(t, s)
	invalid(t, k.Launch(s, gpu.Blocks(1, 65), out), "bounded", "64")
}

// TestCooperative fills the device with blocks that wait for each other.
func TestCooperative(t *testing.T) {
	d := testdev.Open(t, 0)
	if !d.Info().CooperativeLaunch {
		t.Skip("the device has no cooperative launch")
	}
	s, words := newStream(t, d), alloc(t, d, 8)
	k := kernel(t, load(t, d), "meet")
	const threads = 256
	blocks, err := k.MaxResidentBlocks(threads, 0)
	check(t, err)
	if most := d.Info().Multiprocessors * d.Info().MaxBlocksPerSM; blocks < d.Info().Multiprocessors || blocks > most {
		t.Errorf("%d blocks are resident on %d multiprocessors", blocks, d.Info().Multiprocessors)
	}
	for _, bad := range [][2]int{{0, 0}, {-1, 0}, {d.Info().MaxThreadsPerBlock + 1, 0}, {1, -1}, {1, d.Info().MaxSharedPerBlock + 1}, {math.MaxInt, 0}} {
		if n, err := k.MaxResidentBlocks(bad[0], bad[1]); n != 0 || err != nil {
			t.Errorf("%d blocks of %d threads and %d bytes are resident, %v", n, bad[0], bad[1], err)
		}
	}
	cfg := gpu.Blocks(blocks, threads)
	cfg.Cooperative = true
	check(t, gpu.CopyIn(words, []uint32{0, 0}))
	check(t, k.Launch(s, cfg, words, words.Ptr()+4, uint64(10*time.Second)))
	synchronize(t, s)
	if got := contents[uint32](t, words, 2); got[0] != uint32(blocks) || got[1] != 0 {
		t.Errorf("of %d blocks %d came, %d timed out", blocks, got[0], got[1])
	}
	cfg.Grid.X++
	invalid(t, k.Launch(s, cfg, words, words.Ptr()+4, uint64(10*time.Second)), "meet", name(t))
}

// TestLaunchFromManyGoroutines launches one kernel with different arguments.
func TestLaunchFromManyGoroutines(t *testing.T) {
	d := testdev.Open(t, 0)
	fill := kernel(t, load(t, d), "fill")
	const goroutines, launches = 8, 100
	out := alloc(t, d, 4*goroutines*launches)
	streams := make([]*gpu.Stream, goroutines)
	for i := range streams {
		streams[i] = newStream(t, d)
	}
	var all sync.WaitGroup
	for i, s := range streams {
		all.Go(func() {
			for j := range launches {
				at := i*launches + j
				testerr.Report(t, fill.Launch(s, gpu.Blocks(1, 1), out.Ptr()+gpu.Ptr(4*at), 1, at))
			}
			testerr.Report(t, s.Synchronize(deadline(t)))
		})
	}
	all.Wait()
	for i, v := range contents[uint32](t, out, goroutines*launches) {
		if v != uint32(i) {
			t.Fatalf("launch %d wrote %d", i, v)
		}
	}
}
