package channel_test

import (
	_ "embed"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

//go:embed pipe_pool_test.cu
var poolSource []byte

// poolMemory returns registered memory of so many bytes.
func poolMemory(t *testing.T, device *gpu.Device, bytes uint64) *registeredmem.Memory {
	t.Helper()
	r := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Group: [16]byte{1}, Secret: [32]byte{2}, Device: device}))(t)
	t.Cleanup(func() { r.Close() })
	buffer := testerr.Must(device.Alloc(bytes))(t)
	return testerr.Must(r.Register(buffer))(t)
}

// borrow has blocks borrow of a pool with so many lots, and checks that none had a lot that another had.
func borrow(t *testing.T, device *gpu.Device, lots int) {
	t.Helper()
	const blocks, rounds, lotBytes = 8, 40, 1024
	m := poolMemory(t, device, 16<<10)
	pool, err := pipe.NewPool(m, lots, lotBytes)
	testerr.Check(t, err)
	if pool.End() != m.Size()-uint64(lots)*lotBytes || pool.Begin() >= pool.End() {
		t.Errorf("ends lie from %d to %d", pool.Begin(), pool.End())
	}
	module := testerr.Must(devicecode.Load(t.Context(), device, "pipe_pool_test.cu", poolSource, devicecode.Options{}))(t)
	kernel := testerr.Must(module.Kernel("borrowers"))(t)
	counts := testerr.Must(gpu.Upload(device, make([]uint64, 3)))(t)
	stream := testerr.Must(device.NewStream())(t)
	got := make([]uint64, 3)
	testerr.Check(t, errors.Join(kernel.Launch(stream, gpu.Blocks(blocks, 1), m.Buffer(), rounds, counts), stream.Synchronize(t.Context()), gpu.CopyOut(got, counts)))
	if got[0]+got[1] != blocks*rounds || got[2] != 0 || (got[0] == 0) != (lots == 0) {
		t.Errorf("lots were had %d times, and not %d times, of %d; %d words were overwritten", got[0], got[1], blocks*rounds, got[2])
	}
	stats, err := pool.Stats()
	if want := (channel.PipePoolStats{Bytes: m.Size(), ForEnds: pool.End() - pool.Begin(), Lots: uint64(lots), Asked: blocks * rounds, Refused: got[1]}); err != nil || stats != want {
		t.Errorf("the pool says %+v (%v), want %+v", stats, err, want)
	}
}

// TestPipePool has more blocks than lots borrow these.
func TestPipePool(t *testing.T) {
	for _, lots := range []int{0, 1, 3, 12} {
		borrow(t, testdev.Open(t, 0), lots)
	}
}

// TestPipePoolNearlyFull has one thread borrow all lots, and then the only one that is free.
func TestPipePoolNearlyFull(t *testing.T) {
	device := testdev.Open(t, 0)
	module := testerr.Must(devicecode.Load(t.Context(), device, "pipe_pool_test.cu", poolSource, devicecode.Options{}))(t)
	kernel := testerr.Must(module.Kernel("borrowAll"))(t)
	stream := testerr.Must(device.NewStream())(t)
	for _, lots := range []int{1, 2, 7, 8, 9, 17, 64} {
		const lotBytes = 384
		m := poolMemory(t, device, 32<<10)
		pool, err := pipe.NewPool(m, lots, lotBytes)
		testerr.Check(t, err)
		places := testerr.Must(gpu.Upload(device, make([]uint64, lots+1)))(t)
		got := make([]uint64, lots+1)
		const skips = 5
		testerr.Check(t, errors.Join(kernel.Launch(stream, gpu.Blocks(1, 1), m.Buffer(), skips, places), stream.Synchronize(t.Context()), gpu.CopyOut(got, places)))
		if got[lots] != 0 {
			t.Errorf("of %d lots, none was free, or one was, and the place was %#x", lots, got[lots])
		}
		slices.Sort(got)
		for i, place := range got[1:] {
			if want := pool.End() + uint64(i)*lotBytes; place != want {
				t.Errorf("of %d lots number %d is at %d, want %d", lots, i, place, want)
			}
		}
		stats, err := pool.Stats()
		if err != nil || stats.Lent != uint64(lots-1) || stats.Refused != 1 || stats.Asked != uint64(skips+2*lots+1) {
			t.Errorf("the pool says %+v (%v)", stats, err)
		}
	}
}

// TestPipePoolNoRaces does so under the race finder: what is in a lot is ordered between its users.
func TestPipePoolNoRaces(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("races are found on emulated devices")
	}
	finder, err := gpu.FindRaces()
	testerr.Check(t, err)
	t.Cleanup(func() { finder.Close() }) // after the device
	borrow(t, testdev.Open(t, 0), 2)
	races, unwatched, err := finder.Races()
	if err != nil || len(unwatched) > 0 || len(races) > 0 {
		t.Errorf("%v, %q, %v", races, unwatched, err)
	}
}

// TestWrongPipePools makes pools of what does not do, and ends that do not lie in one.
func TestWrongPipePools(t *testing.T) {
	m := poolMemory(t, testdev.Open(t, 0), 4096)
	for part, c := range map[string]struct {
		memory *registeredmem.Memory
		lots   int
		bytes  uint64
	}{
		"not this rank's":        {nil, 1, 128},
		"-1 lots; 0 to ":         {m, -1, 128},
		"4097 lots; 0 to ":       {m, pipe.MaxLots + 1, 128},
		"lots of 100 bytes":      {m, 1, 100},
		"lots of 0 bytes":        {m, 1, 0},
		"32 lots of 128 bytes":   {m, 32, 128},
		"2 lots of 92233720368":  {m, 2, 1 << 63},
		"1 lots of 8192 bytes d": {m, 1, 8192},
	} {
		if _, err := pipe.NewPool(c.memory, c.lots, c.bytes); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
	if _, err := pipe.NewPool(m, 28, 128); err != nil { // 384 bytes remain for what is in front
		t.Error(err)
	}

	end := newMemoryEnds(t)[0]
	pool := testerr.Must(pipe.NewPool(m, 2, 256))(t)
	for slots, want := range map[pipe.Size]int{
		{Slots: 2, SlotBytes: 128}: 2, {Slots: 1, SlotBytes: 128}: 2, {Slots: 4, SlotBytes: 128}: 0, {Slots: 1, SlotBytes: 256}: 0,
	} {
		if got := pool.LotSlots(slots.Slots, slots.SlotBytes); got != want {
			t.Errorf("messages of %+v borrow %d slots, want %d", slots, got, want)
		}
	}
	good := pipe.Config{Size: pipe.Size{Slots: 1, SlotBytes: 128, LotSlots: 2}, Pool: pool,
		Own: pipe.End{Memory: m, Offset: pool.Begin()}, Peer: pipe.End{Memory: end.remote}}
	for part, change := range map[string]func(c *pipe.Config){
		"which has no pool":                   func(c *pipe.Config) { c.Pool = nil },
		"where ends lie from 256 to 3584":     func(c *pipe.Config) { c.Own.Offset = 128 },
		"the end lies at offset 2944":         func(c *pipe.Config) { c.Own.Offset = 2944 },
		"borrow 4 slots of 128 bytes, and a":  func(c *pipe.Config) { c.LotSlots = 4 },
		"3 slots to borrow; their number":     func(c *pipe.Config) { c.LotSlots = 3 },
		"32 slots to borrow; their number":    func(c *pipe.Config) { c.LotSlots = 32 },
		"a power of two from 4 to 16, or 0":   func(c *pipe.Config) { c.Slots = 4 },
		"this rank's end needs 768 bytes at ": func(c *pipe.Config) { c.Own.Offset = 3840 },
	} {
		c := good
		change(&c)
		if _, err := pipe.NewByThreads(end.semaphore, c); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
	if _, err := pipe.NewByThreads(end.semaphore, good); err != nil {
		t.Error(err)
	}
}
