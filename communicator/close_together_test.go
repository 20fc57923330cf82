package communicator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// freeSpans returns what is free of a communicator's memory for channels.
func (c *Communicator) freeSpans() (all []spans) {
	for _, a := range []*arena{c.private, c.shared} {
		a.mu.Lock()
		for _, s := range a.slabs {
			all = append(all, append(spans(nil), s.free...))
		}
		a.mu.Unlock()
	}
	return all
}

// TestCloseTogether has several goroutines close channels and pipes at once, whose memory is
// given back once.
func TestCloseTogether(t *testing.T) {
	err := RunTogether(t.Context(), []*gpu.Device{testdev.Open(t, 0)}, Options{}, func(ctx context.Context, c *Communicator) error {
		service, err := c.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		local, err := c.Device().Alloc(64)
		if err != nil {
			return err
		}
		var before []spans
		for round := range 20 {
			channels, err := c.MemoryChannels(ctx, local, MemoryChannelOptions{PerPeer: 100})
			ports, err2 := c.PortChannels(ctx, service, local, PortChannelOptions{})
			pipes, err3 := c.Pipes(ctx, PipeOptions{To: []int{0}, From: []int{0}})
			shared, err4 := c.Pipes(ctx, PipeOptions{To: []int{0}, From: []int{0}, Shared: true})
			lazy, err5 := c.Pipes(ctx, PipeOptions{To: []int{0}, From: []int{0}, Lazy: true})
			if err := errors.Join(err, err2, err3, err4, err5); err != nil {
				return err
			}
			for _, one := range []interface{ Close() error }{channels, ports, pipes, shared, lazy} {
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						testerr.Report(t, one.Close())
					})
				}
				all.Wait()
			}
			if round == 0 {
				before = c.freeSpans() // some memory is kept for the next
			}
		}
		testcmp.Equal(t, "what is free", len(c.freeSpans()), len(before))
		for i, s := range c.freeSpans() {
			if !slices.Equal(s, before[i]) {
				t.Errorf("slab %d has free %v, and had %v", i, s, before[i])
			}
		}
		return errors.Join(service.Close(), local.Close())
	})
	testerr.Report(t, err)
}
