package communicator_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// overEthernet has ranks map no memory, so that each is a host of its own.
func overEthernet() communicator.Options {
	return communicator.Options{
		Timeout:    20 * time.Second,
		Transports: registeredmem.Ethernet,
		Ethernet:   ethernet.Options{Interface: "lo"},
	}
}

// overInfiniBand is overEthernet with RDMA devices, which the ranks take in turn.
func overInfiniBand(t testing.TB, rank int, o ib.Options) communicator.Options {
	names := os.Getenv("MSCCLGO_TEST_IB_DEVICES")
	if names == "" {
		t.Skip("MSCCLGO_TEST_IB_DEVICES does not name RDMA devices to test with")
	}
	list := strings.Split(names, ",")
	o.Device = list[rank%len(list)]
	return communicator.Options{Timeout: 60 * time.Second, Transports: registeredmem.InfiniBand, InfiniBand: o}
}

// overEach runs a test over each transport that does not map memory.
func overEach(t *testing.T, n int, test func(t *testing.T, comms []*communicator.Communicator, over registeredmem.Transports)) {
	for name, options := range map[string]func(t *testing.T, rank int) communicator.Options{
		"Ethernet": func(*testing.T, int) communicator.Options { return overEthernet() },
		"SHM": func(*testing.T, int) communicator.Options {
			return communicator.Options{Timeout: 60 * time.Second, Transports: registeredmem.SHM}
		},
		"InfiniBand": func(t *testing.T, rank int) communicator.Options { return overInfiniBand(t, rank, ib.Options{}) },
		"InfiniBand without atomics": func(t *testing.T, rank int) communicator.Options {
			return overInfiniBand(t, rank, ib.Options{NoAtomics: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := make([]communicator.Options, n)
			for rank := range all {
				all[rank] = options(t, rank)
			}
			test(t, groupWith(t, all), all[0].Transports)
		})
	}
}

// TestPortsUnmapped gathers over port channels whose peers are not mapped.
func TestPortsUnmapped(t *testing.T) { overEach(t, 3, testPortsUnmapped) }

// TestPortsOfOneThread has the services of all ranks share a thread.
func TestPortsOfOneThread(t *testing.T) {
	var threads proxyservice.Threads
	all := make([]communicator.Options, 3)
	for rank := range all {
		all[rank] = overEthernet()
		all[rank].Threads = &threads
	}
	testPortsUnmapped(t, groupWith(t, all), registeredmem.Ethernet)
}

func testPortsUnmapped(t *testing.T, comms []*communicator.Communicator, over registeredmem.Transports) {
	const part, rounds = 10_001, 20
	n := len(comms)
	all := workers(t, comms)
	each(t, n, func(rank int) error {
		c := comms[rank]
		if hosts := c.Hosts(); len(hosts) != n {
			return fmt.Errorf("hosts %v", hosts)
		}
		for peer := range n {
			want := over
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

// TestHostSemaphoresUnmapped has two hosts write in turn into each other's pinned
// memory, and each wait for the other's signal.
func TestHostSemaphoresUnmapped(t *testing.T) {
	overEach(t, 2, func(t *testing.T, comms []*communicator.Communicator, over registeredmem.Transports) {
		const rounds = 100
		each(t, 2, func(rank int) error {
			c, ctx := comms[rank], t.Context()
			buf, err := c.Device().AllocHost(64)
			if err != nil {
				return err
			}
			t.Cleanup(func() { buf.Close() })
			clear(buf.Bytes())
			peers, err := c.Share(ctx, buf)
			if err != nil {
				return err
			}
			defer peers.Close()
			conn, err := c.Connect(ctx, 1-rank, 1)
			if err != nil {
				return err
			}
			word, err := buf.Slice(0, semaphore.Host2HostBytes)
			if err != nil {
				return err
			}
			s, err := semaphore.NewHost2Host(conn, word, peers.Memories[1-rank], 0)
			if err != nil {
				return err
			}
			if err := c.Barrier(ctx); err != nil { // both ends are made
				return err
			}
			mine, theirs := buf.Bytes()[8:16], buf.Bytes()[16:24]
			for round := range rounds {
				if round%2 == rank { // it is this rank's turn
					mine[0] = byte(round)
					if err := errors.Join(conn.Write(peers.Memories[1-rank], 16, peers.Memories[rank], 8, 8), s.Signal(), conn.Flush(ctx)); err != nil {
						return err
					}
				} else if err := s.Wait(ctx); err != nil {
					return err
				} else if theirs[0] != byte(round) {
					return fmt.Errorf("round %d: %d arrived", round, theirs[0])
				}
			}
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			return conn.Close()
		})
	})
}

// TestNotMapped asks ranks that map no memory for what only ranks that do can give.
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
		if h, err := shared.HostHandle(); err != nil || h.Internal().Ranks[0] == 0 || h.Internal().Ranks[1] != 0 {
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
		if err == nil && (g.Internal().Rank != 0 || g.Internal().Size != 1) {
			err = fmt.Errorf("host group %+v", g)
		}
		return err
	})
}

// TestTransportsOfAHost has ranks of one host with all transports, without CUDA IPC, and
// with Ethernet only: each pair has the best that both have.
func TestTransportsOfAHost(t *testing.T) {
	all := make([]communicator.Options, 4)
	for rank := range all {
		all[rank] = communicator.Options{Timeout: 60 * time.Second, Ethernet: ethernet.Options{Interface: "lo"}}
	}
	all[2].Transports = registeredmem.SHM | registeredmem.Ethernet
	all[3].Transports = registeredmem.Ethernet
	const ipc, shm, net = registeredmem.CudaIPC, registeredmem.SHM, registeredmem.Ethernet
	want := [][]registeredmem.Transports{{ipc, ipc, shm, net}, {ipc, ipc, shm, net}, {shm, shm, ipc, net}, {net, net, net, ipc}}
	got := make([][]registeredmem.Transports, len(all))
	for rank, c := range groupWith(t, all) {
		for peer := range all {
			over := testerr.Must(c.Transport(peer))(t)
			got[rank] = append(got[rank], over)
		}
	}
	if diff := testcmp.Diff(want, got); diff != "" {
		t.Errorf("the transports by rank and peer (-want +got):\n%s", diff)
	}
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

// TestNoSuchNIC names an RDMA device that is not there, which is an error also where
// there is none at all, though Ethernet would do.
func TestNoSuchNIC(t *testing.T) {
	o := overEthernet()
	o.Transports |= registeredmem.InfiniBand
	o.InfiniBand.Device = "none0"
	boots := ranks(t, 2)
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	kind, text := mscclgo.ErrInvalid, "no such RDMA device"
	if _, err := verbs.Devices(); err != nil {
		kind, text = mscclgo.ErrUnsupported, "verbs"
	}
	errs := outcomes(t, 2, func(rank int) error {
		c, err := communicator.New(t.Context(), boots[rank], devices[rank], o)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, kind, text)
	}
}

// TestNoNIC goes over Ethernet where InfiniBand is allowed and not to be had.
func TestNoNIC(t *testing.T) {
	if _, err := verbs.Devices(); err == nil {
		t.Skip("there are RDMA devices")
	}
	o := overEthernet()
	o.Transports |= registeredmem.InfiniBand
	boots := ranks(t, 2)
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	each(t, 2, func(rank int) error {
		c, err := communicator.New(t.Context(), boots[rank], devices[rank], o)
		if err != nil {
			return err
		}
		if over, err := c.Transport(1 - rank); err != nil || over != registeredmem.Ethernet {
			return errors.Join(fmt.Errorf("the transport is %v", over), err, c.Close())
		}
		return c.Close()
	})
}
