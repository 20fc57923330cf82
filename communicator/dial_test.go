package communicator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// openings are the calls in which ranks connect to the peers of each.
func openings(peers [][]int) map[string]func(context.Context, *communicator.Communicator, *proxyservice.ProxyService, *gpu.Buffer) error {
	return map[string]func(context.Context, *communicator.Communicator, *proxyservice.ProxyService, *gpu.Buffer) error{
		"ports": func(ctx context.Context, c *communicator.Communicator, s *proxyservice.ProxyService, b *gpu.Buffer) error {
			_, err := c.PortChannels(ctx, s, b, communicator.PortChannelOptions{PerPeer: 2, Peers: peers[c.Rank()]})
			return err
		},
		"pipes": func(ctx context.Context, c *communicator.Communicator, s *proxyservice.ProxyService, _ *gpu.Buffer) error {
			ranks := peers[c.Rank()]
			_, err := c.Pipes(ctx, communicator.PipeOptions{To: ranks, From: ranks, PerPeer: 2, Service: s})
			return err
		},
	}
}

// openAtOnce has three ranks make a call of openings, which fails well before the ranks' time is up.
func openAtOnce(t *testing.T, comms []*communicator.Communicator, open func(context.Context, *communicator.Communicator, *proxyservice.ProxyService, *gpu.Buffer) error) []error {
	t.Helper()
	start := time.Now()
	errs := outcomes(t, 3, func(rank int) error {
		s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		return open(t.Context(), comms[rank], s, upload(t, comms[rank].Device(), 0, 64))
	})
	if took := time.Since(start); took > soon/2 {
		t.Errorf("it took %v", took)
	}
	return errs
}

// TestDialDropped has rank 0 reach no other, as where a firewall drops what it sends to them, which wait for it to
// dial: all hear of it when its own dial has failed, and may call again.
func TestDialDropped(t *testing.T) {
	for name, open := range openings([][]int{{1, 2}, {0, 2}, {0, 1}}) {
		t.Run(name, func(t *testing.T) {
			o := overEthernet()
			o.Timeout = soon
			comms := group(t, 3, o)
			communicator.FailDials(comms[0], mscclgo.Errorf(mscclgo.ErrRemote, "ethernet: connect", "connection timed out").At(0, 1))
			errs := openAtOnce(t, comms, open)
			failing(t, 0, errs[0], mscclgo.ErrRemote, "rank 0, peer 1")
			for rank := 1; rank < 3; rank++ {
				failing(t, rank, errs[rank], mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer 0", rank), "connection timed out")
				if err := comms[rank].Err(); err != nil {
					t.Errorf("rank %d: the group has failed: %v", rank, err)
				}
			}
		})
	}
}

// TestPartFailsBeforeDial has rank 0's part of a call fail because of rank 1, when rank 2, which goes with
// rank 0, may be waiting for rank 0 to dial. All hear of it at once.
func TestPartFailsBeforeDial(t *testing.T) {
	for name, open := range openings([][]int{{1, 2}, {2}, {0, 1}}) {
		t.Run(name, func(t *testing.T) {
			o := overEthernet()
			o.Timeout = soon
			comms := group(t, 3, o)
			errs := openAtOnce(t, comms, open)
			failing(t, 0, errs[0], mscclgo.ErrInvalid, "rank 0, peer 1")
			failing(t, 2, errs[2], mscclgo.ErrRemote, "rank 2, peer 0", "its part failed")
			for rank, c := range comms {
				if c.Err() != nil {
					t.Errorf("rank %d: the group has failed: %v", rank, c.Err())
				}
			}
		})
	}
}

// TestNoMemoryToDial has rank 0 without memory for connections to two ranks that wait for it to dial: all hear of it
// at once.
func TestNoMemoryToDial(t *testing.T) {
	options := slices.Repeat([]communicator.Options{overEthernet()}, 3)
	options[0].Ethernet.Staging = 1 << 50
	comms := groupWith(t, options)
	start := time.Now()
	errs := outcomes(t, 3, func(rank int) error {
		s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		if rank > 0 {
			time.Sleep(20 * time.Millisecond) // the dialled connections have ended then
		}
		peers := [][]int{{1, 2}, {0, 2}, {0, 1}}[rank]
		_, err = comms[rank].PortChannels(t.Context(), s, upload(t, comms[rank].Device(), 0, 64), communicator.PortChannelOptions{Peers: peers})
		return err
	})
	if took := time.Since(start); took > soon/2 {
		t.Errorf("it took %v", took)
	}
	failing(t, 0, errs[0], mscclgo.ErrSystem, "rank 0")
	failing(t, 1, errs[1], mscclgo.ErrSystem, "rank 1, peer 0")
	failing(t, 2, errs[2], mscclgo.ErrSystem, "rank 2, peer 0")
	for rank, err := range errs {
		// Not what the end of the group has ended on the rank.
		if text := fmt.Sprint(err); strings.Count(text, "allocate 70368744177664 bytes") != 1 || strings.Contains(text, "given up") {
			t.Errorf("rank %d is told more than once: %v", rank, err)
		}
	}
}

// leaver is a bootstrap that calls a function after an AllGather.
type leaver struct {
	*bootstrap.Bootstrap
	after int // so many more, if it is above 0
	leave func()
}

func (l *leaver) AllGather(ctx context.Context, data []byte) ([][]byte, error) {
	all, err := l.Bootstrap.AllGather(ctx, data)
	if l.after--; l.after == 0 {
		l.leave()
	}
	return all, err
}

// TestLeavesBeforeDial has the context of rank 0's call end when the others may be waiting for rank 0 to dial: they hear
// of it at once.
func TestLeavesBeforeDial(t *testing.T) {
	o := overEthernet()
	o.Timeout = soon
	boots := ranks(t, 3)
	first := &leaver{Bootstrap: boots[0]}
	comms := groupOver(t, []communicator.Bootstrap{first, boots[1], boots[2]}, devices(t, 3), []communicator.Options{o, o, o})
	start := time.Now()
	errs := outcomes(t, 3, func(rank int) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		if rank == 0 {
			first.after, first.leave = 3, cancel // when it has the offers of all
		}
		_, err = comms[rank].PortChannels(ctx, s, upload(t, comms[rank].Device(), 0, 64), communicator.PortChannelOptions{})
		return err
	})
	if took := time.Since(start); took > soon/2 {
		t.Errorf("it took %v", took)
	}
	failing(t, 0, errs[0], mscclgo.ErrAborted, "connect (rank 0")
	for rank := 1; rank < 3; rank++ {
		failing(t, rank, errs[rank], mscclgo.ErrRemote, "peer 0", "rank 0 left")
	}
}
