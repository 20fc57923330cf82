package communicator_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/proxyservice"
)

var smallPipe = channel.PipeSize{Slots: 4, SlotBytes: 256}

// neighbours returns options of pipes from each of n ranks to the next.
func neighbours(rank, n int) communicator.PipeOptions {
	return communicator.PipeOptions{To: []int{(rank + 1) % n}, From: []int{(rank + n - 1) % n}, Size: smallPipe, PerPeer: 2}
}

// TestPipes makes pipes and closes them a hundred times. Each time they begin anew, and
// nothing is left behind.
func TestPipes(t *testing.T) {
	const n, rounds, length = 3, 100, 700
	comms := group(t, n, communicator.Options{})
	all := workers(t, comms)
	remake := func(rank int) error {
		c := comms[rank]
		data := upload(t, c.Device(), byte(rank+1), 2*length)
		defer data.Close()
		o := neighbours(rank, n)
		if rank == 0 { // a pool of the caller's, from its last byte on
			need, err := c.PipeBytes(o)
			if err != nil {
				return err
			}
			o.Pool, o.PoolOffset = upload(t, c.Device(), 99, int(need)+pipe.Align), pipe.Align
			defer o.Pool.Close()
		}
		p, err := c.Pipes(t.Context(), o)
		if err != nil {
			return err
		}
		if set := p.Set(); set.Internal().Outs != 1 || set.Internal().Ins != 1 || set.Internal().PerPeer != 2 || p.To(1, o.To[0]) == nil || p.From(1, o.From[0]) == nil {
			return fmt.Errorf("the set is %+v", set)
		}
		if p.To(2, o.To[0]) != nil || p.To(0, rank) != nil || p.From(0, rank) != nil {
			return fmt.Errorf("there are pipes that were not made")
		}
		if err := all[rank].run(t.Context(), "passOn", 32, p.Set(), data, length); err != nil {
			return err
		}
		if err := holds(data, length, byte(o.From[0]+1)); err != nil {
			return err
		}
		if err := c.Barrier(t.Context()); err != nil {
			return err
		}
		for range 2 {
			if err := p.Close(); err != nil {
				return err
			}
		}
		return nil
	}
	remakes(t, comms, rounds, remake)
}

// remakes has all ranks make something once, for what stays, and then so many times, after which nothing
// more must be left.
func remakes(t *testing.T, comms []*communicator.Communicator, rounds int, remake func(rank int) error) {
	t.Helper()
	each(t, len(comms), remake)
	before := take(t, comms)
	each(t, len(comms), func(rank int) error {
		for round := range rounds {
			if err := remake(rank); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		return nil
	})
	take(t, comms).grown(t, before)
}

// TestWrongPipes has ranks ask for pipes that cannot be, or that the others do not. The
// errors name this rank and the other.
func TestWrongPipes(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	for name, c := range map[string]struct {
		rank  int // whose options are spoilt
		spoil func(o *communicator.PipeOptions, c *communicator.Communicator)
		// What the error of a rank says.
		of   int
		want []string
	}{
		"no such rank": {1, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.To = []int{3} }, 1,
			[]string{"rank 1", "the ranks of To, [3], are not distinct ranks of a group of 3"}},
		"a rank twice": {1, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.From = []int{0, 0} }, 1,
			[]string{"rank 1", "the ranks of From, [0 0]"}},
		"three slots": {2, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.Size.Slots = 3 }, 2,
			[]string{"3 slots; their number must be a power of two"}},
		"other slots": {2, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.Size.Slots = 8 }, 1,
			[]string{"rank 1, peer 2", "its pipes have 8 slots of 256 bytes, this rank's 4 of 256"}},
		"other sizes": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.Size.SlotBytes = 128 }, 2,
			[]string{"rank 2, peer 0", "its pipes have 4 slots of 128 bytes, this rank's 4 of 256"}},
		"more pipes": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.PerPeer = 3 }, 2,
			[]string{"rank 2, peer 0", "PerPeer is 3, this rank's 2"}},
		"too many pipes": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.PerPeer = 1 << 20 }, 0,
			[]string{"1048576 pipes for each peer"}},
		"more memory than there can be": {1, func(o *communicator.PipeOptions, _ *communicator.Communicator) {
			o.To, o.From, o.PerPeer = []int{0, 1, 2}, []int{0, 1, 2}, 2048
			o.Size = channel.PipeSize{Slots: 4096, SlotBytes: 1 << 40}
		}, 1, []string{"rank 1", "2048 pipes for each peer with 4096 slots of 1099511627776 bytes need more memory than there can be"}},
		"another receiver": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.To = []int{2} }, 1,
			[]string{"rank 1, peer 0", "this rank receives from it, but is not in its To"}},
		"another receiver, at that": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.To = []int{2} }, 2,
			[]string{"rank 2, peer 0", "it sends to this rank, but is not in this rank's From"}},
		"no sender": {0, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.From = nil }, 2,
			[]string{"rank 2, peer 0", "this rank sends to it, but is not in its From"}},
		"a small pool": {1, func(o *communicator.PipeOptions, c *communicator.Communicator) {
			o.Pool = upload(t, c.Device(), 0, 3000)
		}, 1,
			[]string{"rank 1", "the pool is too small: 4 ends need 3072 bytes from offset 0 on, and it has 3000"}},
		"a pool behind its end": {1, func(o *communicator.PipeOptions, c *communicator.Communicator) {
			o.Pool, o.PoolOffset = upload(t, c.Device(), 0, 6000), 1<<63
		}, 1, []string{"the pool is too small"}},
		"a pool off its alignment": {1, func(o *communicator.PipeOptions, c *communicator.Communicator) {
			o.Pool, o.PoolOffset = upload(t, c.Device(), 0, 6000), 64
		}, 1, []string{"the pool's offset, 64, is not a multiple of 128"}},
		"a closed pool": {1, func(o *communicator.PipeOptions, c *communicator.Communicator) {
			o.Pool = upload(t, c.Device(), 0, 6000)
			o.Pool.Close()
		}, 1, []string{"rank 1", "closed"}},
		"ports without a service": {1, func(o *communicator.PipeOptions, _ *communicator.Communicator) { o.Ports = true }, 1,
			[]string{"rank 1", "pipes by ports need a service"}},
	} {
		errs := outcomes(t, n, func(rank int) error {
			o := neighbours(rank, n)
			if rank == c.rank {
				c.spoil(&o, comms[rank])
			}
			p, err := comms[rank].Pipes(t.Context(), o)
			if err == nil {
				err = p.Close()
			}
			return err
		})
		t.Run(name, func(t *testing.T) { failing(t, c.of, errs[c.of], mscclgo.ErrInvalid, c.want...) })
		for rank, err := range errs {
			if err == nil {
				t.Errorf("%s: rank %d has no error", name, rank)
			}
		}
	}
	each(t, n, func(rank int) error { // what was wrong has left nothing behind
		p, err := comms[rank].Pipes(t.Context(), neighbours(rank, n))
		if err != nil {
			return err
		}
		return p.Close()
	})
}

// TestPipeBytes refuses sizes that cannot be counted, and gives the others.
func TestPipeBytes(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	size := pipe.Size{Slots: 4096, SlotBytes: 1 << 40}
	o := communicator.PipeOptions{From: []int{0, 1}, Size: channel.PipeSize{Slots: size.Slots, SlotBytes: size.SlotBytes}}
	for perPeer, fits := range map[int]bool{1: true, 2047: true, 2048: false} {
		o.PerPeer = perPeer
		got, err := comms[0].PipeBytes(o)
		if !fits {
			failing(t, 0, err, mscclgo.ErrInvalid, "rank 0", "more memory than there can be")
			continue
		}
		if want := uint64(2*perPeer) * size.Bytes(); err != nil || got != want {
			t.Errorf("%d pipes for each peer need %d bytes (%v), want %d", perPeer, got, err, want)
		}
	}
}

// TestPortsAtOneEnd has one rank ask for ports, and the other not.
func TestPortsAtOneEnd(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	errs := outcomes(t, 2, func(rank int) error {
		s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		o := neighbours(rank, 2)
		o.Service, o.Ports = s, rank == 1
		_, err = comms[rank].Pipes(t.Context(), o)
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrInvalid, "rank 0, peer 1", "its Ports is true, this rank's false")
	failing(t, 1, errs[1], mscclgo.ErrInvalid, "rank 1, peer 0", "its Ports is false, this rank's true")
}

// TestPipesUnmapped asks for pipes between ranks that map no memory, without a service.
func TestPipesUnmapped(t *testing.T) {
	comms := group(t, 2, overEthernet())
	errs := outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].Pipes(t.Context(), neighbours(rank, 2))
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrInvalid, fmt.Sprintf("rank %d, peer %d", rank, 1-rank), "need a service")
	}
}

// TestNoPipes has a rank without pipes take part.
func TestNoPipes(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	each(t, 3, func(rank int) error {
		var o communicator.PipeOptions
		switch rank {
		case 0:
			o.To = []int{2}
		case 2:
			o.From = []int{0}
		}
		o.Size = smallPipe
		p, err := comms[rank].Pipes(t.Context(), o)
		if err != nil {
			return err
		}
		if set := p.Set(); int(set.Internal().Outs) != len(o.To) || int(set.Internal().Ins) != len(o.From) {
			return fmt.Errorf("the set is %+v", set)
		}
		return p.Close()
	})
}

// holds returns an error unless all bytes from an offset on are the value.
func holds(b *gpu.Buffer, from int, value byte) error {
	got := make([]byte, b.Size())
	if err := gpu.CopyOut(got, b); err != nil {
		return err
	}
	if n := bytes.Count(got[from:], []byte{value}); n != len(got)-from {
		return fmt.Errorf("%d of %d bytes are %d", n, len(got)-from, value)
	}
	return nil
}

// TestPipesServiceFull is TestLazyPipesServiceFull of pipes that are not lazy, also over a network, where a peer
// would wait for the connections of the rank that has no room.
func TestPipesServiceFull(t *testing.T) {
	for name, o := range map[string]communicator.Options{"mapped": {}, "Ethernet": overEthernet()} {
		t.Run(name, func(t *testing.T) { testPipesServiceFull(t, o) })
	}
}

func testPipesServiceFull(t *testing.T, o communicator.Options) {
	const n = 3
	comms := group(t, n, o)
	proxies := make([]*proxyservice.ProxyService, n)
	each(t, n, func(rank int) (err error) {
		proxies[rank], err = comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{MaxConnections: []int{4, 1, 4}[rank]})
		return err
	})
	pipes := func(rank int, peers ...int) (*communicator.Pipes, error) {
		return comms[rank].Pipes(t.Context(), communicator.PipeOptions{To: peers, From: peers, Size: smallPipe, Ports: true, Service: proxies[rank]})
	}
	for range 3 {
		errs := outcomes(t, n, func(rank int) error {
			_, err := pipes(rank, (rank+1)%n, (rank+2)%n)
			return err
		})
		for _, rank := range []int{0, 2} {
			failing(t, rank, errs[rank], mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer 1", rank), "the service has 1 connections")
		}
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "the service has 1 connections; raise ServiceOptions.MaxConnections")
	}
	each(t, n, func(rank int) error {
		var peers []int
		if rank != 1 {
			peers = []int{2 - rank}
		}
		p, err := pipes(rank, peers...)
		return errors.Join(err, proxies[rank].Close(), comms[rank].Barrier(t.Context()), p.Close())
	})
}
