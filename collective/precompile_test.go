package collective_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestPrecompile compiles kernels into a new cache, with which ranks then do without a compiler.
func TestPrecompile(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the compiler of emulated devices is taken away")
	}
	t.Setenv("MSCCLGO_CACHE", t.TempDir())
	const ranks, count = 2, 1000
	var told []int
	o := collective.PrecompileOptions{
		Kinds: []collective.Kind{collective.AllReduce, collective.SendReceive}, Types: []collective.Type{collective.I32}, Ranks: []int{ranks},
		Done: func(n, all int) { told = append(told, all, n) },
	}
	testerr.Check(t, collective.Precompile(t.Context(), devicecode.ArchEmu, o))
	all := told[0]
	for i := 0; i < len(told); i += 2 {
		if told[i] != all || told[i+1] != i/2+1 {
			t.Fatalf("it told of %v", told)
		}
	}
	if len(told) != 2*all {
		t.Errorf("it told of %d of %d files", len(told)/2, all)
	}

	t.Setenv("CXX", filepath.Join(t.TempDir(), "none"))
	testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
		r, err := newSplitRun(ctx, comm, 0, 4*count)
		if err != nil {
			return err
		}
		m, err := r.runner.Share(ctx, r.data)
		if err != nil {
			return err
		}
		n := 0
		for _, kind := range o.Kinds {
			for _, algorithm := range kind.Algorithms() {
				if algorithm == "hier" || algorithm == "hierRing" || algorithm == "hierTree" {
					continue // between hosts
				}
				c := collective.Call{Kind: kind, Type: collective.I32, Count: count, Choice: collective.Choice{Algorithm: algorithm, Blocks: 2, Threads: 64}}
				c.Out, c.In = m, m
				if c.InPlace = kind == collective.AllReduce; !c.InPlace {
					if c.Out, err = m.Slice(8*count, 4*count); err != nil {
						return err
					}
				}
				op, err := r.runner.Prepare(ctx, c)
				if err != nil {
					return err
				}
				if err := op.Launch(r.stream); err != nil {
					return err
				}
				n++
			}
		}
		if n < 10 {
			return errors.New("there are fewer algorithms than there were")
		}
		g := r.runner.Group()
		g.Send(r.stream, r.data, count, collective.I32, 1-comm.Rank())
		half, err := r.data.Slice(8*count, 4*count)
		if err != nil {
			return err
		}
		g.Recv(r.stream, half, count, collective.I32, 1-comm.Rank())
		err = errors.Join(g.Launch(), r.runner.AllReduce(r.stream, r.data, r.data, count, collective.I32, collective.Sum), r.child.Synchronize(ctx, r.stream))
		if err != nil {
			return err
		}
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		ports, err := comm.PortChannels(ctx, service, r.data, communicator.PortChannelOptions{OnStream: true})
		if err = errors.Join(err, service.Close(), ports.Close()); err != nil {
			return err
		}
		// What was left out.
		err = r.runner.AllReduce(r.stream, r.data, r.data, count, collective.I32, collective.Max)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "compiler")
		return errors.Join(r.runner.Close(ctx), r.child.Close(), r.stream.Close(), r.data.Close())
	})
}

// TestPrecompileRefuses asks for what there is not, and compiles nothing.
func TestPrecompileRefuses(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("MSCCLGO_CACHE", cache)
	for text, o := range map[string]collective.PrecompileOptions{
		"there is no collective 99": {Kinds: []collective.Kind{99}},
		"there is no element":       {Types: []collective.Type{99}},
		"there is no operation":     {Ops: []collective.Op{99}},
		// Of kinds that do not reduce, and behind one that there is.
		"there is no element type 77": {Kinds: []collective.Kind{collective.Broadcast}, Types: []collective.Type{collective.F32, 77}},
		"there is no operation 77":    {Kinds: []collective.Kind{collective.Broadcast}, Ops: []collective.Op{77}},
		"there is no group of 0":      {Ranks: []int{8, 0}},
	} {
		testerr.Expect(t, collective.Precompile(t.Context(), devicecode.ArchEmu, o), mscclgo.ErrInvalid, text)
	}
	testerr.Expect(t, collective.Precompile(t.Context(), "tpu", collective.PrecompileOptions{Kinds: []collective.Kind{collective.Broadcast}}), mscclgo.ErrInvalid, `"tpu"`)
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("the cache has %v, %v", left, err)
	}
}
