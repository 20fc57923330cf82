package communicator_test

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestServiceFullOfMemories has a rank whose service has room for one memory less than its channels or pipes need: all
// hear of it. Then there is room for others, which need one less.
func TestServiceFullOfMemories(t *testing.T) {
	const n = 2
	comms := group(t, n, overEthernet())
	proxies, locals, inboxes := make([]*proxyservice.ProxyService, n), make([]*gpu.Buffer, n), make([]*gpu.Buffer, n)
	each(t, n, func(rank int) (err error) {
		c := comms[rank]
		locals[rank], inboxes[rank] = upload(t, c.Device(), 0, 64), upload(t, c.Device(), 0, 64)
		if proxies[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
			return err
		}
		registry, err := registeredmem.NewRegistry(registeredmem.Options{Rank: rank, Device: c.Device()})
		if err != nil {
			return err
		}
		t.Cleanup(func() { registry.Close() })
		for range []int{0, 1<<16 - 2}[rank] {
			m, err := registry.Register(locals[rank])
			if err != nil {
				return err
			}
			if _, err := proxies[rank].AddMemory(m); err != nil {
				return err
			}
		}
		return nil
	})
	if t.Failed() {
		return
	}
	other := func(rank int) []int { return []int{1 - rank} }
	full := func(what string, make func(rank int) error) {
		errs := outcomes(t, n, make)
		failing(t, 0, errs[0], mscclgo.ErrRemote, "rank 0, peer 1", "its part failed", "of at most 65536; make another service")
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "of at most 65536; make another service")
		if t.Failed() {
			t.Fatal(what)
		}
	}
	full("pipes with a buffer", func(rank int) error {
		_, err := comms[rank].Pipes(t.Context(), communicator.PipeOptions{To: other(rank), From: other(rank), Buffer: locals[rank], Service: proxies[rank]})
		return err
	})
	each(t, n, func(rank int) error {
		p, err := comms[rank].PortChannels(t.Context(), proxies[rank], locals[rank], communicator.PortChannelOptions{PerPeer: 2, Peers: other(rank)})
		if err != nil {
			return err
		}
		t.Cleanup(func() { p.Close() })
		return nil
	})
	full("channels", func(rank int) error {
		_, err := comms[rank].PortChannels(t.Context(), proxies[rank], locals[rank], communicator.PortChannelOptions{Peers: other(rank), Inbox: inboxes[rank]})
		return err
	})
	full("pipes", func(rank int) error {
		_, err := comms[rank].Pipes(t.Context(), communicator.PipeOptions{To: other(rank), From: other(rank), Service: proxies[rank]})
		return err
	})
	each(t, n, func(rank int) error { return errors.Join(comms[rank].Barrier(t.Context()), proxies[rank].Close()) })
}
