package communicator_test

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestPortPeers makes channels in a chain of ranks.
func TestPortPeers(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	peers := [][]int{{1}, {2, 0}, {1}}
	each(t, 3, func(rank int) error {
		c := comms[rank]
		s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		p, err := c.PortChannels(t.Context(), s, upload(t, c.Device(), 0, 64), communicator.PortChannelOptions{PerPeer: 2, Peers: peers[rank]})
		if err != nil {
			return err
		}
		for i := range 2 {
			for j, peer := range p.Ranks {
				handle := p.Channel(i, peer).Handle()
				if handle.Internal().RemoteSize != 64 || p.HandleOf(i, peer) != p.HandleOf(0, p.Ranks[0])+gpu.Ptr(uintptr(i*len(p.Ranks)+j)*unsafe.Sizeof(handle)) {
					t.Errorf("rank %d: channel %d to rank %d is %+v", rank, i, peer, handle)
				}
			}
		}
		if err := c.Barrier(t.Context()); err != nil {
			return err
		}
		return p.Close()
	})
}

// TestPortPeersReformed has the caller use the slice of peers for something else before the group is re-formed.
func TestPortPeersReformed(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	next := ranks(t, 2)
	each(t, 2, func(rank int) error {
		c, peers := comms[rank], []int{1 - rank}
		s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		p, err := c.PortChannels(t.Context(), s, upload(t, c.Device(), 0, 64), communicator.PortChannelOptions{Peers: peers})
		if err := errors.Join(err, s.Close()); err != nil {
			return err
		}
		peers[0] = 7
		if c, err = c.Reform(t.Context(), next[rank]); err != nil {
			return err
		}
		comms[rank] = c // for the test to close
		if s, err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
			return err
		}
		_, err = p.Reform(t.Context(), c, s)
		return errors.Join(err, s.Close(), c.Barrier(t.Context()), p.Close())
	})
}

// TestPortPeersDiffer has peers that name no rank, or one that names them not.
func TestPortPeersDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		peers [][]int
		want  mscclgo.Kind // on rank 0
		says  string
	}{
		"outside":  {[][]int{{2}, nil}, mscclgo.ErrInvalid, "[2]"},
		"negative": {[][]int{{-1}, nil}, mscclgo.ErrInvalid, "[-1]"},
		"twice":    {[][]int{{1, 1}, nil}, mscclgo.ErrInvalid, "[1 1]"},
		"one way":  {[][]int{{1}, {}}, mscclgo.ErrInvalid, "peer 1"},
	} {
		t.Run(name, func(t *testing.T) {
			comms := group(t, 2, communicator.Options{})
			errs := outcomes(t, 2, func(rank int) error {
				s, err := comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
				if err != nil {
					return err
				}
				defer s.Close()
				_, err = comms[rank].PortChannels(t.Context(), s, upload(t, comms[rank].Device(), 0, 64), communicator.PortChannelOptions{Peers: c.peers[rank]})
				return err
			})
			failing(t, 0, errs[0], c.want, c.says)
			failing(t, 1, errs[1], mscclgo.ErrRemote, "peer 0")
		})
	}
}

// TestPortChannelsServiceFull has a rank whose service has no room for its channels: all hear of it, also over a
// network, where a peer would wait for its connections; and there is room for fewer channels then, however often
// the ranks tried.
func TestPortChannelsServiceFull(t *testing.T) {
	for name, o := range map[string]communicator.Options{"mapped": {}, "Ethernet": overEthernet()} {
		t.Run(name, func(t *testing.T) { testPortChannelsServiceFull(t, o) })
	}
}

func testPortChannelsServiceFull(t *testing.T, o communicator.Options) {
	const n = 2
	comms := group(t, n, o)
	proxies, locals := make([]*proxyservice.ProxyService, n), make([]*gpu.Buffer, n)
	each(t, n, func(rank int) (err error) {
		locals[rank] = upload(t, comms[rank].Device(), 0, 64)
		proxies[rank], err = comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{MaxConnections: []int{2, 4}[rank]})
		return err
	})
	channels := func(rank, perPeer int) (*communicator.PortChannels, error) {
		return comms[rank].PortChannels(t.Context(), proxies[rank], locals[rank], communicator.PortChannelOptions{PerPeer: perPeer, Peers: []int{1 - rank}})
	}
	for range 3 {
		errs := outcomes(t, n, func(rank int) error {
			_, err := channels(rank, 4)
			return err
		})
		failing(t, 1, errs[1], mscclgo.ErrRemote, "rank 1, peer 0", "its part failed", "the service has 2 connections")
		failing(t, 0, errs[0], mscclgo.ErrInvalid, "the service has 2 connections; raise ServiceOptions.MaxConnections")
	}
	each(t, n, func(rank int) error {
		p, err := channels(rank, 2)
		return errors.Join(err, proxies[rank].Close(), comms[rank].Barrier(t.Context()), p.Close())
	})
}

// TestPortNamed has a kernel ask a port for what it cannot do: the error has the channels' name, or else the number
// that errors of waits have.
func TestPortNamed(t *testing.T) {
	for _, name := range []string{"halo of the left side, and some more of it", ""} {
		for _, bytes := range []uint64{65, 1 << 50} {
			comms := group(t, 2, communicator.Options{})
			var service *proxyservice.ProxyService
			errs := outcomes(t, 2, func(rank int) error {
				c := comms[rank]
				w, err := newWorker(t.Context(), c)
				if err != nil {
					return err
				}
				defer w.close()
				s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
				if err != nil {
					return err
				}
				t.Cleanup(func() { s.Close() })
				local := upload(t, c.Device(), 0, 64)
				if _, err := c.PortChannels(t.Context(), s, local, communicator.PortChannelOptions{}); err != nil { // with numbers of their own
					return err
				}
				p, err := c.PortChannels(t.Context(), s, local, communicator.PortChannelOptions{Name: name})
				if err != nil || rank == 1 {
					return err
				}
				service = s
				if err := w.launch("portStream", 1, 1, p.HandleOf(0, 1), bytes, uint32(1)); err != nil {
					return err
				}
				return c.Synchronize(t.Context(), w.stream)
			})
			says := "channel 4: "
			if name != "" {
				says = "channel 'halo of the left side, and some "
			}
			failing(t, 0, errs[0], mscclgo.ErrInvalid, "rank 0, peer 1", says)
			failing(t, 0, service.Err(), mscclgo.ErrInvalid, "rank 0, peer 1", says)
		}
	}
}

// TestServiceOfOtherRank has ranks of one process take each other's services, to whose rings their kernels cannot push.
func TestServiceOfOtherRank(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	proxies := services(t, comms, true)
	says := fmt.Sprintf("the proxy service is for %v, the communicator on %v", comms[1].Device(), comms[0].Device())
	errs := outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].PortChannels(t.Context(), proxies[1-rank], upload(t, comms[rank].Device(), 0, 64), communicator.PortChannelOptions{})
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrInvalid, says)
	errs = outcomes(t, 2, func(rank int) error {
		other := []int{1 - rank}
		_, err := comms[rank].Pipes(t.Context(), communicator.PipeOptions{To: other, From: other, Ports: true, Service: proxies[1-rank]})
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrInvalid, says)
	each(t, 2, func(rank int) error { return proxies[rank].Close() })
}
