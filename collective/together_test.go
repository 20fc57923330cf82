package collective_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestDriverWaitsForAll has three ranks of a process share a GPU, whose driver waits for the kernels of all of them
// while it makes a graph or loads code. They make calls at random on three streams: plain ones, in graphs of
// three, and first ones of a kind. On emulated devices something waits in the driver's place.
func TestDriverWaitsForAll(t *testing.T) {
	const ranks = 3
	var mu sync.Mutex
	var streams []*gpu.Stream
	idle := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range streams {
			if done, err := s.Query(); !done && err == nil {
				return false
			}
		}
		return true
	}
	slow := func() {
		for start := time.Now(); !idle() && time.Since(start) < 20*time.Second; {
			time.Sleep(time.Millisecond)
		}
	}
	var devices []*gpu.Device
	for range ranks {
		devices = append(devices, testdev.Open(t, 0))
		if !testdev.CUDA() {
			devices[len(devices)-1].Internal().SlowDriver(slow)
		}
	}
	options := communicator.Options{Scratch: 1 << 20, Timeout: 5 * time.Second}
	err := communicator.RunTogether(t.Context(), devices, options, func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := collective.New(ctx, comm, collective.Options{Scratch: 4 << 10})
		if err != nil {
			return err
		}
		m := &member{ctx, comm, runner, nil}
		c, err := newChain(m, 3)
		if err != nil {
			return err
		}
		mu.Lock()
		streams = append(streams, c.streams...)
		mu.Unlock()
		random := rand.New(rand.NewPCG(3, 4)) // alike on all ranks
		other, err := gpu.Upload(m.comm.Device(), make([]int32, ranks*chainCount))
		if err != nil {
			return err
		}
		out, err := gpu.Upload(m.comm.Device(), make([]int32, chainCount))
		if err != nil {
			return err
		}
		for range 40 {
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			s := c.streams[random.IntN(len(c.streams))]
			switch n := random.IntN(12); {
			case n < 4:
				if err := s.BeginCapture(); err != nil {
					return err
				}
				err := errors.Join(c.call(s), c.call(s), c.call(s))
				g, end := s.EndCapture()
				if err := errors.Join(err, end); err != nil {
					return err
				}
				c.graphs = append(c.graphs, g)
				if err := g.Launch(c.streams[random.IntN(len(c.streams))]); err != nil {
					return err
				}
			case n == 4:
				err = m.runner.Broadcast(s, other, other, chainCount, collective.I32, random.IntN(ranks))
			case n == 5:
				err = m.runner.ReduceScatter(s, out, other, chainCount, collective.I32, collective.Max)
			case n == 6:
				err = m.runner.AllReduce(s, out, other, 7, collective.F32, collective.Op(random.IntN(2)))
			default:
				err = c.call(s)
			}
			if err != nil {
				return err
			}
		}
		return errors.Join(c.check(), c.close(), other.Close(), out.Close(), runner.Close(ctx))
	})
	testerr.Report(t, err)
}
