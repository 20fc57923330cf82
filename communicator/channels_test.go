package communicator_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// filled returns a buffer of a part for each rank, of which this rank's holds its
// number from 1 and the others zeros.
func filled(t testing.TB, c *communicator.Communicator, part int) *gpu.Buffer {
	t.Helper()
	b := upload(t, c.Device(), 0, c.Size()*part)
	mine, err := b.Slice(uint64(c.Rank()*part), uint64(part))
	if err == nil {
		err = gpu.CopyIn(mine, bytes.Repeat([]byte{byte(c.Rank() + 1)}, part))
	}
	testerr.Check(t, err)
	return b
}

// gathered checks that every rank's part has arrived.
func gathered(b *gpu.Buffer, ranks int) error {
	got := make([]byte, b.Size())
	if err := gpu.CopyOut(got, b); err != nil {
		return err
	}
	part := len(got) / ranks
	for i, v := range got {
		if v != byte(i/part+1) {
			return fmt.Errorf("byte %d of %d is %d, want %d", i, len(got), v, i/part+1)
		}
	}
	return nil
}

func TestMemoryChannels(t *testing.T) {
	const part, perPeer, handleBytes = 1001, 3, int(unsafe.Sizeof(layout.MemoryChannel{}))
	for _, n := range []int{1, 3} {
		comms := group(t, n, communicator.Options{})
		all := workers(t, comms)
		each(t, n, func(rank int) error {
			local := filled(t, comms[rank], part)
			channels, err := comms[rank].MemoryChannels(t.Context(), local, communicator.MemoryChannelOptions{PerPeer: perPeer})
			if err != nil {
				return err
			}
			for number := range perPeer {
				for peer := range n {
					if channels.Channel(number, peer) == nil || channels.HandleOf(number, peer) != channels.Handles.Ptr()+gpu.Ptr((number*n+peer)*handleBytes) {
						return fmt.Errorf("channel %d to %d is not where its handle should be", number, peer)
					}
				}
				if err := all[rank].run(t.Context(), "gather", 64, channels.Handles, n, rank, number, part); err != nil {
					return err
				}
				if err := gathered(local, n); err != nil {
					return err
				}
			}
			return channels.Close()
		})
	}
}

// TestNoSuchChannel asks for channels that do not exist: it gets none, and no other channel in their place.
func TestNoSuchChannel(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	each(t, n, func(rank int) error {
		c := comms[rank]
		m, err := c.MemoryChannels(t.Context(), filled(t, c, 16), communicator.MemoryChannelOptions{PerPeer: 2})
		if err != nil {
			return err
		}
		s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		var peers []int // all but this rank
		for r := range n {
			if r != rank {
				peers = append(peers, r)
			}
		}
		p, err := c.PortChannels(t.Context(), s, filled(t, c, 16), communicator.PortChannelOptions{PerPeer: 2, Peers: peers})
		if err != nil {
			return err
		}
		for _, none := range [][2]int{{0, -1}, {1, -1}, {0, n}, {1, n}, {2, 1}, {-1, 1}} {
			i, to := none[0], none[1]
			if m.Channel(i, to) != nil || m.HandleOf(i, to) != 0 || p.Channel(i, to) != nil || p.HandleOf(i, to) != 0 {
				return fmt.Errorf("there is a channel %d to rank %d", i, to)
			}
		}
		if p.Channel(1, rank) != nil || p.HandleOf(1, rank) != 0 {
			return fmt.Errorf("there is a port channel to rank %d itself", rank)
		}
		return errors.Join(s.Close(), p.Close(), m.Close())
	})
}

func TestInbox(t *testing.T) {
	const part = 248 // packets are a multiple of 8 bytes
	comms := group(t, 3, communicator.Options{})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		local := filled(t, comms[rank], part)
		inbox := upload(t, comms[rank].Device(), 0, 2*3*part)
		channels, err := comms[rank].MemoryChannels(t.Context(), local, communicator.MemoryChannelOptions{Inbox: inbox})
		if err != nil {
			return err
		}
		for flag := range uint32(5) {
			if err := all[rank].run(t.Context(), "sendPackets", 32, channels.Handles, 3, rank, part, flag+1); err != nil {
				return err
			}
			if err := gathered(local, 3); err != nil {
				return err
			}
			if err := comms[rank].Barrier(t.Context()); err != nil {
				return err
			}
		}
		return channels.Close()
	})
}

// TestRemake makes channels and closes them a hundred times. Their semaphores
// begin anew each time, and nothing is left behind.
func TestRemake(t *testing.T) {
	const rounds, perPeer = 100, 2
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	locals := make([]*gpu.Buffer, 2)
	for i, c := range comms {
		locals[i] = upload(t, c.Device(), 0, 64)
	}
	remake := func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), locals[rank], communicator.MemoryChannelOptions{PerPeer: perPeer})
		if err != nil {
			return err
		}
		if err := all[rank].run(t.Context(), "meet", 2*perPeer, channels.Handles); err != nil {
			return err
		}
		if err := comms[rank].Barrier(t.Context()); err != nil {
			return err
		}
		for range 2 {
			if err := channels.Close(); err != nil {
				return err
			}
		}
		return nil
	}
	each(t, 2, remake) // what is made once
	before := take(t, comms)
	each(t, 2, func(rank int) error {
		for round := range rounds {
			if err := remake(rank); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		return nil
	})
	take(t, comms).grown(t, before)
}

func TestDisagreeOnPerPeer(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	errs := outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{PerPeer: 1 + rank/2})
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrInvalid, "PerPeer")
	}
}

// TestBytesPerChannel holds a channel to 1 KiB of GPU memory beside its buffers.
func TestBytesPerChannel(t *testing.T) {
	const perPeer, most = 500, 1 << 10
	comms := group(t, 2, communicator.Options{})
	before := take(t, comms)
	each(t, 2, func(rank int) error {
		_, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{PerPeer: perPeer})
		return err
	})
	for rank, c := range comms {
		used := communicator.ArenaBytes(c) - before.arena[rank]
		t.Logf("rank %d: %d bytes a channel", rank, used/(2*perPeer))
		if used == 0 || used > 2*perPeer*most {
			t.Errorf("rank %d: %d channels take %d bytes, at most %d each are allowed", rank, 2*perPeer, used, most)
		}
	}
}

// TestMaxBlocks has ranks that share a device with others and one that does not.
func TestMaxBlocks(t *testing.T) {
	for _, numbers := range [][]int{{0, 0, 0}, {0, 1, 1}} {
		t.Run(fmt.Sprint(numbers), func(t *testing.T) { maxBlocks(t, numbers) })
	}
}

func maxBlocks(t *testing.T, numbers []int) {
	var devices []*gpu.Device
	most := 0 // ranks on a device
	for _, i := range numbers {
		devices = append(devices, testdev.Open(t, i))
		here := 0
		for _, d := range devices {
			if d.Info().UUID == devices[len(devices)-1].Info().UUID {
				here++
			}
		}
		most = max(most, here)
	}
	comms := groupOn(t, devices, make([]communicator.Options, len(devices)))
	all := workers(t, comms)
	each(t, len(devices), func(rank int) error {
		group, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		kernel, err := all[rank].module.Kernel("barriers")
		if err != nil {
			return err
		}
		resident, err := kernel.MaxResidentBlocks(64, 0)
		if err != nil {
			return err
		}
		blocks, err := comms[rank].MaxBlocks(t.Context(), kernel, 64, 0)
		if err != nil {
			return err
		}
		if want := min(resident/most, devicecode.MaxBlocks); blocks != want {
			return fmt.Errorf("%d blocks of %d resident ones for each of %d ranks, want %d", blocks, resident, most, want)
		}
		if err := all[rank].launch("barriers", blocks, 64, group, 5); err != nil {
			return err
		}
		if err := comms[rank].Synchronize(t.Context(), all[rank].stream); err != nil {
			return err
		}
		if _, err := comms[rank].MaxBlocks(t.Context(), kernel, 4096, 0); !errors.Is(err, mscclgo.ErrUnsupported) || strings.Contains(err.Error(), "share it") {
			return fmt.Errorf("blocks of 4096 threads: %v", err)
		}
		_, err = comms[rank].MaxBlocks(t.Context(), kernel, 64, 64<<10)
		if !errors.Is(err, mscclgo.ErrUnsupported) || !strings.Contains(err.Error(), "call Kernel.SetMaxDynamicShared first") {
			return fmt.Errorf("blocks with 64 KiB of shared memory: %v", err)
		}
		return all[rank].want(done)
	})
}
