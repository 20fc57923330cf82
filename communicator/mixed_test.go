package communicator_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/testdev"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// overEthernet has ranks map no memory, so that each is a host of its own.
func overEthernet() communicator.Options {
	return communicator.Options{
		Timeout:    20 * time.Second,
		Transports: registeredmem.Ethernet,
		Ethernet:   ethernet.Options{Interface: "lo"},
	}
}

// TestPortsOverEthernet gathers over port channels whose peers are not mapped.
func TestPortsOverEthernet(t *testing.T) {
	const n, part, rounds = 3, 10_001, 20
	comms := group(t, n, overEthernet())
	all := workers(t, comms)
	each(t, n, func(rank int) error {
		c := comms[rank]
		if hosts := c.Hosts(); len(hosts) != n {
			return fmt.Errorf("hosts %v", hosts)
		}
		for peer := range n {
			want := registeredmem.Ethernet
			if peer == rank {
				want = registeredmem.CudaIPC
			}
			if got, err := c.Transport(peer); err != nil || got != want {
				return fmt.Errorf("rank %d is reached over %v, %v", peer, got, err)
			}
		}
		data := make([]byte, n*part)
		copy(data[rank*part:], bytes.Repeat([]byte{byte(rank + 1)}, part))
		local, err := gpu.Upload(c.Device(), data)
		if err != nil {
			return err
		}
		s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		p, err := c.PortChannels(t.Context(), s, local, communicator.PortChannelOptions{})
		if err != nil {
			return err
		}
		if err := all[rank].run(t.Context(), "portGather", 1, p.Handles, n, rank, part, rounds); err != nil {
			return err
		}
		if err := gpu.CopyOut(data, local); err != nil {
			return err
		}
		for i, b := range data {
			if int(b) != i/part+1 {
				return fmt.Errorf("byte %d is %d", i, b)
			}
		}
		if err := c.Barrier(t.Context()); err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
		return p.Close()
	})
}

// TestNotMapped asks of ranks that map no memory what only those can who do.
func TestNotMapped(t *testing.T) {
	comms := group(t, 2, overEthernet())
	for name, try := range map[string]func(c *communicator.Communicator, b *gpu.Buffer) error{
		"a group": func(c *communicator.Communicator, b *gpu.Buffer) error {
			_, err := c.Group(t.Context())
			return err
		},
		"memory channels": func(c *communicator.Communicator, b *gpu.Buffer) error {
			_, err := c.MemoryChannels(t.Context(), b, communicator.MemoryChannelOptions{})
			return err
		},
	} {
		errs := outcomes(t, 2, func(rank int) error { return try(comms[rank], upload(t, comms[rank].Device(), 0, 64)) })
		for rank, err := range errs {
			t.Log(name, err)
			failing(t, rank, err, mscclgo.ErrUnsupported, fmt.Sprintf("peer %d", 1-rank), "not mapped")
		}
	}
	each(t, 2, func(rank int) error { // what concerns the host works
		c := comms[rank]
		shared, err := c.Share(t.Context(), upload(t, c.Device(), 0, 64))
		if err != nil {
			return err
		}
		if h, err := shared.HostHandle(); err != nil || h.Ranks[0] == 0 || h.Ranks[1] != 0 {
			return fmt.Errorf("handle %v, %v", h, err)
		}
		m, err := c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{SameHost: true})
		if err != nil {
			return err
		}
		if len(m.Ranks) != 1 || m.Channel(0, rank) == nil || m.HandleOf(0, rank) != m.Handles.Ptr() {
			return fmt.Errorf("memory channels to %v", m.Ranks)
		}
		g, err := c.HostGroup(t.Context())
		if err == nil && (g.Rank != 0 || g.Size != 1) {
			err = fmt.Errorf("host group %+v", g)
		}
		return err
	})
}

// TestNoTransport has ranks with no transport in common.
func TestNoTransport(t *testing.T) {
	boots := ranks(t, 2)
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	options := []communicator.Options{overEthernet(), overEthernet()}
	options[1].Transports = registeredmem.CudaIPC
	errs := outcomes(t, 2, func(rank int) error {
		_, err := communicator.New(t.Context(), boots[rank], devices[rank], options[rank])
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrUnsupported, fmt.Sprintf("rank %d, peer %d", rank, 1-rank), "no transport", "Ethernet")
	}
}
