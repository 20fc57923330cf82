package communicator_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// upload returns a buffer of n bytes of one value, closed with the test.
func upload(t testing.TB, d *gpu.Device, value byte, n int) *gpu.Buffer {
	t.Helper()
	b := testerr.Must(gpu.Upload(d, bytes.Repeat([]byte{value}, n)))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func TestShare(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	size := func(rank int) int { return 1000 + rank }
	buffers := make([]*gpu.Buffer, 3)
	for i, c := range comms {
		buffers[i] = upload(t, c.Device(), byte(i+1), size(i))
	}
	each(t, 3, func(rank int) error {
		p, err := comms[rank].Share(t.Context(), buffers[rank])
		if err != nil {
			return err
		}
		h, err := p.Handle()
		if err != nil {
			return err
		}
		for peer, m := range p.Memories {
			if m.Rank() != peer || m.Size() != uint64(size(peer)) || h.Internal().Ranks[peer] != m.Buffer().Ptr() {
				return fmt.Errorf("memory of rank %d: %v at %#x, handle %#x", peer, m, m.Buffer().Ptr(), h.Internal().Ranks[peer])
			}
			got := make([]byte, size(peer))
			if err := gpu.CopyOut(got, m.Buffer()); err != nil {
				return err
			}
			if diff := testcmp.Diff(bytes.Repeat([]byte{byte(peer + 1)}, len(got)), got); diff != "" {
				return fmt.Errorf("the memory of rank %d (-want +got):\n%s", peer, diff)
			}
		}
		if err := comms[rank].Barrier(t.Context()); err != nil {
			return err
		}
		for range 2 {
			if err := p.Close(); err != nil {
				return err
			}
		}
		if _, err := p.Handle(); err == nil {
			return fmt.Errorf("a handle of closed memory")
		}
		return nil
	})
}

// TestOneRankFails has one rank fail in its own part of a collective call. All
// get an error that names it, and the group goes on.
func TestOneRankFails(t *testing.T) {
	const faulty = 1
	comms := group(t, 3, communicator.Options{})
	stranger := upload(t, testdev.Open(t, 0), 0, 64)
	closed := upload(t, comms[faulty].Device(), 0, 64)
	testerr.Check(t, closed.Close())
	share := func(wrong *gpu.Buffer) func(c *communicator.Communicator, right *gpu.Buffer) error {
		return func(c *communicator.Communicator, b *gpu.Buffer) error {
			if c.Rank() == faulty {
				b = wrong
			}
			_, err := c.Share(t.Context(), b)
			return err
		}
	}
	channels := func(o communicator.MemoryChannelOptions) func(c *communicator.Communicator, right *gpu.Buffer) error {
		return func(c *communicator.Communicator, b *gpu.Buffer) error {
			options := communicator.MemoryChannelOptions{}
			if c.Rank() == faulty {
				options = o
			}
			_, err := c.MemoryChannels(t.Context(), b, options)
			return err
		}
	}
	for name, try := range map[string]func(c *communicator.Communicator, right *gpu.Buffer) error{
		"share nil":             share(nil),
		"share closed memory":   share(closed),
		"share of a stranger":   share(stranger),
		"channels over nothing": channels(communicator.MemoryChannelOptions{PerPeer: -1}),
		"too many channels":     channels(communicator.MemoryChannelOptions{PerPeer: 4097}),
		"a closed inbox":        channels(communicator.MemoryChannelOptions{Inbox: closed}),
		"a stranger's inbox":    channels(communicator.MemoryChannelOptions{Inbox: stranger}),
	} {
		t.Run(name, func(t *testing.T) {
			errs := outcomes(t, 3, func(rank int) error {
				return try(comms[rank], upload(t, comms[rank].Device(), 0, 64))
			})
			for rank, err := range errs {
				if rank == faulty {
					failing(t, rank, err, mscclgo.ErrInvalid, "rank 1")
				} else {
					failing(t, rank, err, mscclgo.ErrRemote, "peer 1", fmt.Sprintf("rank %d", rank))
				}
			}
		})
	}
	each(t, 3, func(rank int) error {
		_, err := comms[rank].Share(t.Context(), upload(t, comms[rank].Device(), 0, 64))
		return err
	})
}

// TestNil passes nil where a rank must have something.
func TestNil(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	kernel := testerr.Must(all[0].module.Kernel("await"))(t)
	for name, try := range map[string]func(c *communicator.Communicator) error{
		"service": func(c *communicator.Communicator) error {
			var s *proxyservice.ProxyService
			if c.Rank() == 0 {
				var err error
				if s, err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
					return err
				}
				defer s.Close()
			}
			_, err := c.PortChannels(t.Context(), s, upload(t, c.Device(), 0, 64), communicator.PortChannelOptions{})
			return err
		},
		"kernel": func(c *communicator.Communicator) error {
			k := kernel
			if c.Rank() == 1 {
				k = nil
			}
			_, err := c.MaxBlocks(t.Context(), k, 32, 0)
			return err
		},
	} {
		errs := outcomes(t, 2, func(rank int) error { return try(comms[rank]) })
		failing(t, 0, errs[0], mscclgo.ErrRemote, "peer 1", name+" is nil")
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "rank 1", name+" is nil")
	}
	failing(t, 0, comms[0].Synchronize(t.Context(), nil), mscclgo.ErrInvalid, "stream is nil")
}

// TestSharePinned shares what no peer can map.
func TestSharePinned(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	errs := outcomes(t, 2, func(rank int) error {
		b, err := comms[rank].Device().AllocHost(64)
		if err != nil {
			return err
		}
		defer b.Close()
		_, err = comms[rank].Share(t.Context(), b)
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrUnsupported, fmt.Sprintf("peer %d", 1-rank))
	}
}

// TestCallsDiffer has the ranks make different collective calls at the same
// time.
func TestCallsDiffer(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	errs := outcomes(t, 2, func(rank int) error {
		if rank == 0 {
			_, err := comms[0].Group(t.Context())
			return err
		}
		_, err := comms[1].Share(t.Context(), upload(t, comms[1].Device(), 0, 64))
		return err
	})
	told := false // one may hear of the other's failure before it finds out itself
	for rank, err := range errs {
		if err == nil {
			t.Errorf("rank %d: no error", rank)
		} else if strings.Contains(err.Error(), `"share"`) && strings.Contains(err.Error(), `"make the group's windows"`) {
			told = true
		}
		if comms[rank].Barrier(t.Context()) == nil {
			t.Errorf("rank %d: the group goes on", rank)
		}
	}
	if !told {
		t.Errorf("no error names both calls: %v", errs)
	}
}
