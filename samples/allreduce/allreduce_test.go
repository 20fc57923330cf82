package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/elements"
	"github.com/mscclgo/mscclgo/internal/measure"
	"github.com/mscclgo/mscclgo/internal/testdev"
	"github.com/mscclgo/mscclgo/internal/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

var algorithms = []string{"oneShot", "twoShot", "direct"}

// counts are element counts that have given trouble to somebody: one, odd ones,
// around the words and lines of the kernels, not divisible by the ranks.
var counts = []uint64{1, 2, 3, 7, 8, 9, 31, 255, 1000, 1021, 4099}

func testConfig() config {
	return config{algo: "auto", max: 64 << 10, blocks: 8, threads: 128, iters: 1}
}

// TestEverywhere runs all algorithms, types and operations at all counts, in
// place and out of place, aligned and not.
func TestEverywhere(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{Scratch: 4 << 20}, everything)
		})
	}
}

func everything(ctx context.Context, comm *communicator.Communicator) error {
	// Each variant takes some counts, the fewer the more ranks share the machine;
	// together they take all. Eight ranks take some variants only.
	stride := map[int]int{1: 3, 2: 3, 3: 6}[comm.Size()]
	if stride == 0 || testing.Short() {
		stride = len(counts)
	}
	variant := 0
	for _, inPlace := range []bool{false, true} {
		for _, offset := range []uint64{0, 1, 4, 8} {
			cfg := testConfig()
			cfg.inPlace, cfg.offset, cfg.typ, cfg.op = inPlace, offset, "f32", "sum"
			o, err := newOperation(ctx, comm, cfg)
			if err != nil {
				return err
			}
			for _, typ := range elements.Reducible() {
				for _, op := range elements.Ops() {
					for _, algo := range algorithms {
						if variant++; comm.Size() == 8 && variant%5 != 0 {
							continue
						}
						for i := variant % stride; i < len(counts); i += stride {
							o.typ, o.op, o.cfg.algo = typ, op, algo
							row, err := o.measure(ctx, counts[i]*uint64(typ.Size))
							if err != nil {
								return err
							}
							if row.Wrong != 0 {
								return fmt.Errorf("%+v, offset %d: %d wrong", row, offset, row.Wrong)
							}
						}
					}
				}
			}
			if err := o.close(ctx, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestRing runs the ring over the host-driven channels, in place and out of
// place, aligned and not, with several blocks.
func TestRing(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{Scratch: 4096}, func(ctx context.Context, comm *communicator.Communicator) error {
				for i, offset := range []uint64{0, 1} {
					cfg := testConfig()
					cfg.algo, cfg.typ, cfg.op, cfg.offset, cfg.inPlace, cfg.blocks = "ring", "f32", "sum", offset, i == 1, 1+i
					if err := everyCount(ctx, comm, cfg); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// TestHier runs the hierarchical all-reduce on one host, and on hosts of one rank
// each with Ethernet between them; see also the tests of several hosts.
func TestHier(t *testing.T) {
	for _, c := range []struct {
		ranks      int
		transports registeredmem.Transports
	}{{1, 0}, {3, 0}, {2, registeredmem.Ethernet}, {3, registeredmem.Ethernet}} {
		t.Run(fmt.Sprintf("ranks=%d,transports=%v", c.ranks, c.transports), func(t *testing.T) {
			o := communicator.Options{Scratch: 4096, Transports: c.transports}
			testgroup.Run(t, c.ranks, o, func(ctx context.Context, comm *communicator.Communicator) error {
				cfg := testConfig()
				cfg.algo, cfg.typ, cfg.op, cfg.offset, cfg.inPlace, cfg.blocks = "hier", "f32", "sum", 1, true, 2
				return everyCount(ctx, comm, cfg)
			})
		})
	}
}

func TestPlaceOf(t *testing.T) {
	hosts := [][]int{{0, 3, 4}, {1, 2}, {5, 6, 7}}
	for rank, want := range []place{
		{3, 0, 2, []int{1, 5}}, {3, 1, 2, []int{0, 5}}, {3, 1, 2, []int{3, 6}}, {3, 0, 2, []int{2, 6}},
		{3, 0, 2, []int{}}, {3, 2, 2, []int{0, 1}}, {3, 2, 2, []int{3, 2}}, {3, 2, 2, []int{}},
	} {
		if got := placeOf(rank, hosts); !reflect.DeepEqual(got, want) {
			t.Errorf("rank %d: %+v, want %+v", rank, got, want)
		}
	}
}

// everyCount runs one configuration with all types, operations and counts.
func everyCount(ctx context.Context, comm *communicator.Communicator, cfg config) (err error) {
	o, err := newOperation(ctx, comm, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close(ctx, err)) }()
	ops := elements.Ops()
	for i, typ := range elements.Reducible() {
		for j, count := range counts {
			o.typ, o.op = typ, ops[(i+j)%len(ops)]
			row, err := o.measure(ctx, count*uint64(typ.Size))
			if err != nil {
				return err
			}
			if row.Wrong != 0 {
				return fmt.Errorf("%+v, offset %d: %d wrong", row, cfg.offset, row.Wrong)
			}
		}
	}
	return nil
}

// TestSizes takes sizes over the whole range, with the choice of algorithm; in
// place, on an emulated device, only the lower part of it.
func TestSizes(t *testing.T) {
	largest, largestInPlace := uint64(largestEmulated), uint64(4<<20)
	switch {
	case testdev.CUDA():
		largest, largestInPlace = 256<<20, 256<<20
	case testing.Short():
		largest, largestInPlace = 1<<20, 1<<20
	}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		for _, inPlace := range []bool{false, true} {
			cfg := testConfig()
			cfg.typ, cfg.op, cfg.inPlace = "f16", "sum", inPlace
			cfg.min, cfg.max, cfg.threads, cfg.blocks = 1<<10, largest, 256, 16
			if inPlace {
				cfg.max = largestInPlace
			}
			var table bytes.Buffer
			if err := run(ctx, comm, cfg, &table); err != nil {
				return err
			}
			if rows := strings.Count(table.String(), "f16"); rows < 6 {
				return fmt.Errorf("the table has %d rows:\n%s", rows, &table)
			}
		}
		return nil
	})
}

// TestBackToBack queues hundreds of calls of changing size, algorithm and data
// without a look from the host between, and checks all results at the end.
func TestBackToBack(t *testing.T) {
	const calls = 300
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{Scratch: 1 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
				return backToBack(ctx, comm, calls)
			})
		})
	}
}

func backToBack(ctx context.Context, comm *communicator.Communicator, calls int) error {
	const most = 8 << 10 // bytes of a call
	typ, err := elements.ParseType("bf16")
	if err != nil {
		return err
	}
	sum, err := elements.ParseOp("sum")
	if err != nil {
		return err
	}
	r, err := newAllReducer(ctx, comm, 4, 128)
	if err != nil {
		return err
	}
	defer r.module.Close()
	dev := comm.Device()
	inputs := make([]byte, most*calls)
	for call := range calls {
		typ.Fill(inputs[call*most:(call+1)*most], measure.Seeds(uint64(call), comm.Size())[comm.Rank()])
	}
	in, err := gpu.Upload(dev, inputs)
	if err != nil {
		return err
	}
	out, err := gpu.Upload(dev, bytes.Repeat([]byte{0xff}, len(inputs)))
	if err != nil {
		return err
	}
	peersIn, err := share(ctx, comm, in)
	if err != nil {
		return err
	}
	peersOut, err := share(ctx, comm, out)
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	random := rand.New(rand.NewPCG(1, 2)) // alike on all ranks
	sizes := make([]uint64, calls)
	for call := range calls {
		sizes[call] = (1 + random.Uint64N(most/2)) * 2
		a, b := peersIn, peersOut
		for rank := range comm.Size() {
			a.peers.Ranks[rank] += gpu.Ptr(call * most)
			b.peers.Ranks[rank] += gpu.Ptr(call * most)
		}
		algo := algorithms[random.IntN(len(algorithms))]
		r.blocks = 1 + random.IntN(4)
		if err := r.launch(stream, algo, typ.Name, sum.Name, a, b, sizes[call]/2, sizes[call]); err != nil {
			return err
		}
	}
	if err := comm.Synchronize(ctx, stream); err != nil {
		return err
	}
	results := make([]byte, len(inputs))
	if err := gpu.CopyOut(results, out); err != nil {
		return err
	}
	for call, size := range sizes {
		got := results[call*most : (call+1)*most]
		if wrong := typ.WrongReduced(got[:size], sum, measure.Seeds(uint64(call), comm.Size()), 1); wrong != 0 {
			return fmt.Errorf("call %d of %d bytes: %d wrong", call, size, wrong)
		}
		for i, b := range got[size:] {
			if b != 0xff {
				return fmt.Errorf("call %d of %d bytes wrote behind its end, at %d", call, size, int(size)+i)
			}
		}
	}
	return nil
}

func TestBadFlags(t *testing.T) {
	testgroup.Run(t, 1, communicator.Options{Scratch: 4096}, func(ctx context.Context, comm *communicator.Communicator) error {
		for name, spoil := range map[string]func(*config){
			"type":             func(c *config) { c.typ = "f8" },
			"operation":        func(c *config) { c.op = "mean" },
			"no such kernel":   func(c *config) { c.algo = "tree" },
			"sizes":            func(c *config) { c.min = c.max + 1 },
			"does not fit":     func(c *config) { c.algo = "oneShot" },
			"too many threads": func(c *config) { c.threads = 4096 },
		} {
			cfg := testConfig()
			cfg.typ, cfg.op, cfg.min = "f32", "sum", 16<<10
			spoil(&cfg)
			if err := run(ctx, comm, cfg, &bytes.Buffer{}); err == nil {
				return fmt.Errorf("%s: no error for %+v", name, cfg)
			}
		}
		return nil
	})
}
