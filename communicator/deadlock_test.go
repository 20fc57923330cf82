package communicator_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// stillBed is a group of two that finds deadlocks, with channels of both kinds.
type stillBed struct {
	comms    []*communicator.Communicator
	workers  []*worker
	services []*proxyservice.ProxyService
	channels []*communicator.MemoryChannels
	ports    []*communicator.PortChannels
	handled  chan struct{} // is received from before a user's trigger counts as handled
}

func newStillBed(t *testing.T) *stillBed {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("it is for emulated devices")
	}
	const ranks = 2
	b := &stillBed{
		services: make([]*proxyservice.ProxyService, ranks), channels: make([]*communicator.MemoryChannels, ranks),
		ports: make([]*communicator.PortChannels, ranks), handled: make(chan struct{}),
	}
	b.comms = group(t, ranks, communicator.Options{FindDeadlocks: true, Timeout: time.Hour, Scratch: 4096})
	b.workers = workers(t, b.comms)
	each(t, ranks, func(rank int) (err error) {
		c := b.comms[rank]
		if b.services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error { <-b.handled; return nil }}); err != nil {
			return err
		}
		buffer := upload(t, c.Device(), 0, 4096)
		if b.channels[rank], err = c.MemoryChannels(t.Context(), buffer, communicator.MemoryChannelOptions{Name: "halo", Inbox: upload(t, c.Device(), 0, 4096)}); err != nil {
			return err
		}
		b.ports[rank], err = c.PortChannels(t.Context(), b.services[rank], buffer, communicator.PortChannelOptions{Name: "port"})
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, s := range b.services {
			s.Close()
		}
	})
	return b
}

// to returns a rank's memory channel to the other one.
func (b *stillBed) to(rank int) gpu.Ptr { return b.channels[rank].HandleOf(0, 1-rank) }

// TestDeadlock has groups of which nothing can go on. All ranks are told, long before their
// waits' deadlines.
func TestDeadlock(t *testing.T) {
	synchronize := func(t *testing.T, b *stillBed, rank int) error {
		return b.comms[rank].Synchronize(t.Context(), b.workers[rank].stream)
	}
	for _, c := range []struct {
		name  string
		rank  func(t *testing.T, b *stillBed, rank int) error
		texts []string
	}{
		{"both wait", func(t *testing.T, b *stillBed, rank int) error {
			return errors.Join(b.workers[rank].launch("awaitFirst", 1, 32, b.to(rank)), synchronize(t, b, rank))
		}, []string{"deadlock, nothing can go on: ranks 0 and 1 wait for each other: signal 1 of channel 'halo' from 1 to 0, block 0, and signal 1 of channel 'halo' from 0 to 1, block 0; " +
			"rank 0: thread 0 of block 0 of awaitFirst waits for signal 1 of channel 'halo' from 1 to 0, block 0, 31 threads of block 0 of awaitFirst, from 1 on, are at __syncthreads; rank 1: thread 0 of block 0"}},
		{"a line and a port", func(t *testing.T, b *stillBed, rank int) error {
			w := b.workers[rank]
			err := error(nil)
			if rank == 0 {
				err = w.launch("awaitLine", 1, 32, b.to(0))
			} else {
				err = w.launch("awaitPort", 1, 1, b.ports[1].HandleOf(0, 0))
			}
			return errors.Join(err, synchronize(t, b, rank))
		}, []string{"32 threads of block 0 of awaitLine, from 0 on, wait for channel 'halo' from 1 to 0, block 0", "thread 0 of block 0 of awaitPort waits for signal 1 of channel 'port' from 0 to 1"}},
		{"a host in an exchange", func(t *testing.T, b *stillBed, rank int) error {
			if rank == 1 {
				return b.comms[1].Barrier(t.Context())
			}
			return errors.Join(b.workers[0].launch("awaitFirst", 2, 1, b.to(0)), synchronize(t, b, 0))
		}, []string{"2 threads of 2 blocks of awaitFirst, from 0 of block 0 on, wait for", "rank 1: no kernel runs, its host is in a call that all ranks make"}},
		{"a block without room", func(t *testing.T, b *stillBed, rank int) error {
			return errors.Join(b.workers[rank].launch("awaitFirst", 33, 1, b.to(rank)), synchronize(t, b, rank))
		}, []string{"32 threads of 32 blocks of awaitFirst", "blocks that have not begun, as the device has no room for more: 1;"}},
		{"a stream behind another", func(t *testing.T, b *stillBed, rank int) error {
			dev := b.comms[rank].Device()
			stream, err := dev.NewStream()
			if err != nil {
				return err
			}
			defer stream.Close()
			event, err := dev.NewEvent()
			if err != nil {
				return err
			}
			defer event.Close()
			return errors.Join(b.workers[rank].launch("awaitFirst", 1, 1, b.to(rank)), b.workers[rank].stream.Record(event), stream.Wait(event), b.comms[rank].Synchronize(t.Context(), stream))
		}, []string{"ranks 0 and 1 wait for each other"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newStillBed(t)
			for rank, err := range outcomes(t, len(b.comms), func(rank int) error { return c.rank(t, b, rank) }) {
				if rank == 0 { // which finds it
					failing(t, rank, err, mscclgo.ErrTimeout, c.texts...)
				} else if err == nil {
					t.Errorf("rank %d has no error", rank)
				} else {
					failing(t, rank, err, mscclgo.KindOf(err), c.texts...)
				}
			}
		})
	}
}

// TestNoDeadlock has groups of which only one thing goes on, after a while in which a
// deadlock would be told.
func TestNoDeadlock(t *testing.T) {
	const while = 400 * time.Millisecond
	b := newStillBed(t)
	word := testerr.Must(b.comms[0].Device().AllocHost(8))(t)
	answered := func() error {
		return errors.Join(b.workers[0].launch("tell", 1, 1, b.to(0)), b.workers[0].launch("awaitFirst", 1, 32, b.to(0)))
	}
	for _, c := range []struct {
		name string
		run  func() error // what rank 0 does for rank 1 to go on, and to answer
	}{
		{"a thread computes", func() error { return b.workers[0].launch("later", 1, 2, b.to(0), uint64(while), false) }},
		{"a thread sleeps", func() error { return b.workers[0].launch("later", 1, 2, b.to(0), uint64(while), true) }},
		{"the host computes", func() error {
			time.Sleep(while)
			return answered()
		}},
		{"a stream waits for a value", func() error {
			time.AfterFunc(while, func() {
				(*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(word.Bytes()))).Store(1)
			})
			return errors.Join(b.workers[0].stream.WaitValue64(word, 0, 1, gpu.Equal), answered())
		}},
		{"a handler works", func() error {
			time.AfterFunc(while, func() { b.handled <- struct{}{} })
			return errors.Join(b.workers[0].launch("ask", 1, 1, b.services[0].Fifo(), uint32(fifo.FirstUserKind)),
				b.workers[0].launch("portStream", 1, 1, b.ports[0].HandleOf(0, 0), uint64(4096), uint32(1)),
				answered())
		}},
	} {
		each(t, len(b.comms), func(rank int) error {
			err := error(nil)
			if rank == 0 {
				err = c.run()
			} else {
				err = errors.Join(b.workers[1].launch("awaitFirst", 1, 32, b.to(1)), b.workers[1].launch("tell", 1, 1, b.to(1)))
			}
			if err = errors.Join(err, b.comms[rank].Synchronize(t.Context(), b.workers[rank].stream)); err == nil {
				err = b.comms[rank].Barrier(t.Context())
			}
			return err
		})
		if t.Failed() {
			t.Fatalf("where %s", c.name)
		}
	}
	groups := make([]devicecode.Group, len(b.comms))
	each(t, len(b.comms), func(rank int) (err error) {
		if groups[rank], err = b.comms[rank].Group(t.Context()); err != nil {
			return err
		}
		return errors.Join(b.workers[rank].launch("barriers", 2, 32, groups[rank], uint32(2000)), b.comms[rank].Synchronize(t.Context(), b.workers[rank].stream))
	})
}

// TestDeadlocksVariable has the variable be wrong.
func TestDeadlocksVariable(t *testing.T) {
	t.Setenv("MSCCLGO_DEADLOCKS", "yes")
	err := communicator.Local(t.Context(), 1, "emu", func(context.Context, *communicator.Communicator) error { return nil })
	failing(t, 0, err, mscclgo.ErrInvalid, `MSCCLGO_DEADLOCKS is "yes", neither 0 nor 1`)
}
