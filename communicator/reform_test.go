package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// reformer is a rank of TestReform: what it has of a group, and graphs that use it.
type reformer struct {
	*worker
	local    *gpu.Buffer
	memory   *communicator.MemoryChannels
	service  *proxyservice.ProxyService
	ports    *communicator.PortChannels
	peers    *communicator.PeerMemory
	group    devicecode.Group
	gather   *gpu.Graph
	passed   *gpu.Graph
	barriers *gpu.Graph
}

const reformPart = 1000

// newReformer has a rank make everything by the ordinary calls.
func newReformer(ctx context.Context, c *communicator.Communicator) (*reformer, error) {
	w, err := newWorker(ctx, c)
	if err != nil {
		return nil, err
	}
	r := &reformer{worker: w}
	if r.local, err = c.Device().Alloc(4 * reformPart); err != nil {
		return nil, err
	}
	if r.memory, err = c.MemoryChannels(ctx, r.local, communicator.MemoryChannelOptions{Name: "gather"}); err != nil {
		return nil, err
	}
	if r.service, err = c.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return nil, err
	}
	if r.ports, err = c.PortChannels(ctx, r.service, r.local, communicator.PortChannelOptions{OnStream: true}); err != nil {
		return nil, err
	}
	if r.peers, err = c.Share(ctx, r.local); err != nil {
		return nil, err
	}
	if r.group, err = c.Group(ctx); err != nil {
		return nil, err
	}
	return r, r.capture()
}

// capture captures a gather over the channels, one over the ports by operations of the stream, and
// barriers of the group.
func (r *reformer) capture() error {
	c := r.comm
	for graph, launch := range map[**gpu.Graph]func() error{
		&r.gather: func() error {
			return r.launch("gather", 1, 64, r.memory.Handles, c.Size(), c.Rank(), 0, reformPart)
		},
		&r.passed:   r.pass,
		&r.barriers: func() error { return r.launch("barriers", 2, 32, r.group, 20) },
	} {
		if err := r.stream.BeginCapture(); err != nil {
			return err
		}
		if err := launch(); err != nil {
			return err
		}
		var err error
		if *graph, err = r.stream.EndCapture(); err != nil {
			return err
		}
	}
	return nil
}

// pass queues a gather over the ports.
func (r *reformer) pass() error {
	var errs []error
	each := func(do func(to communicator.StreamPort) error) {
		for peer := range r.comm.Size() {
			errs = append(errs, do(r.ports.OnStream(r.stream, 0, peer)))
		}
	}
	part := uint64(r.comm.Rank()) * reformPart
	each(func(to communicator.StreamPort) error { return to.PutWithSignal(part, part, reformPart) })
	each(communicator.StreamPort.Wait)
	each(communicator.StreamPort.Flush)
	return errors.Join(errs...)
}

// reform takes a rank to a new group. It reports whether all that it captured is right.
func (r *reformer) reform(ctx context.Context, boot communicator.Bootstrap) (captured bool, err error) {
	if err := r.service.Close(); err != nil {
		return false, err
	}
	if r.comm, err = r.comm.Reform(ctx, boot, r.stream); err != nil {
		return false, err
	}
	channels, err := r.memory.Reform(ctx, r.comm)
	if err != nil {
		return false, err
	}
	if r.service, err = r.comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return false, err
	}
	ports, err := r.ports.Reform(ctx, r.comm, r.service)
	if err != nil {
		return false, err
	}
	peers, err := r.peers.Reform(ctx, r.comm)
	if err != nil {
		return false, err
	}
	group, err := r.comm.Group(ctx)
	if err != nil {
		return false, err
	}
	if channels != ports {
		return false, fmt.Errorf("captured memory channels are right: %v, port channels: %v", channels, ports)
	}
	captured = channels && peers && group == r.group
	r.group = group
	if captured {
		return true, nil
	}
	return false, r.capture()
}

// works gathers by the graphs, then over the ports, and has the group's barriers.
func (r *reformer) works(ctx context.Context) error {
	c := r.comm
	for _, do := range []func() error{
		func() error { return r.gather.Launch(r.stream) },
		func() error { return r.passed.Launch(r.stream) },
		func() error {
			return r.launch("portGather", 1, 64, r.ports.Handles, c.Size(), c.Rank(), reformPart, 3)
		},
	} {
		data := make([]byte, r.local.Size())
		copy(data[c.Rank()*reformPart:], bytes.Repeat([]byte{byte(c.Rank() + 1)}, reformPart))
		if err := errors.Join(gpu.CopyIn(r.local, data), gpu.CopyIn(r.results, make([]uint32, mostResults)), c.Barrier(ctx)); err != nil {
			return err
		}
		if err := errors.Join(do(), c.Synchronize(ctx, r.stream)); err != nil {
			return err
		}
		part, err := r.local.Slice(0, uint64(c.Size()*reformPart))
		if err == nil {
			err = errors.Join(r.want(done), gathered(part, c.Size()))
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(r.barriers.Launch(r.stream), c.Synchronize(ctx, r.stream), r.want(done))
}

func (r *reformer) close() error {
	return errors.Join(r.gather.Close(), r.passed.Close(), r.barriers.Close(), r.service.Close(), r.comm.Close(), r.memory.Close(), r.ports.Close(),
		r.worker.close(), r.local.Close())
}

// TestReform has three ranks fail and go on, one leave, and new ones come: to the old
// number, then to more. What was captured lives on where Reform says so.
func TestReform(t *testing.T) {
	const most = 4
	all := make([]*reformer, most)
	made := make([]*communicator.Communicator, most)
	begin := func(rank int, boot communicator.Bootstrap) error {
		dev := testdev.Open(t, rank)
		c, err := communicator.New(t.Context(), boot, dev, communicator.Options{Scratch: 1 << 20})
		if err != nil {
			return err
		}
		made[rank] = c
		all[rank], err = newReformer(t.Context(), c)
		return err
	}
	// goOn has the ranks reform, and nil ones begin.
	goOn := func(want bool, n int) {
		t.Helper()
		boots := ranks(t, n)
		var mu sync.Mutex
		each(t, n, func(rank int) error {
			mu.Lock()
			r := all[rank]
			mu.Unlock()
			if r == nil {
				if err := begin(rank, boots[rank]); err != nil {
					return err
				}
				return errors.Join(made[rank].Barrier(t.Context()), all[rank].works(t.Context()))
			}
			before := bytes.Repeat([]byte{0xab}, 4*reformPart)
			if err := gpu.CopyIn(r.local, before); err != nil {
				return err
			}
			captured, err := r.reform(t.Context(), boots[rank])
			if err != nil {
				return err
			}
			after := make([]byte, len(before))
			if err := gpu.CopyOut(after, r.local); err != nil || !bytes.Equal(before, after) {
				return fmt.Errorf("reforming wrote the user's buffer: %v", err)
			}
			if captured != want {
				return fmt.Errorf("captured graphs are right: %v, not %v", captured, want)
			}
			if err := r.comm.Barrier(t.Context()); err != nil {
				return err
			}
			return r.works(t.Context())
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	boots := ranks(t, 3)
	each(t, 3, func(rank int) error {
		if err := begin(rank, boots[rank]); err != nil {
			return err
		}
		return all[rank].works(t.Context())
	})
	if t.Failed() {
		t.FailNow()
	}

	// Ranks 0 and 1 are in kernels when rank 2 fails.
	for _, r := range all[:2] {
		testerr.Check(t, r.barriers.Launch(r.stream))
	}
	all[2].comm.Abort(errors.New("the disk is full"))
	goOn(true, 3)

	goOn(true, 3) // a group that works

	gone := all[2]
	gone.comm.Abort(errors.New("it leaves"))
	goOn(false, 2) // rank 2 is still there, with all its memory
	testerr.Report(t, gone.close())
	all[2] = nil
	goOn(false, 3)
	goOn(false, 4)
	each(t, most, func(rank int) error { return all[rank].close() })
}

// TestReformAgain has the first new group fail while it is made, and the streams still
// work the first time.
func TestReformAgain(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	channels := make([]*communicator.MemoryChannels, 2)
	each(t, 2, func(rank int) (err error) {
		buffer, err := comms[rank].Device().Alloc(1 << 12)
		if err != nil {
			return err
		}
		channels[rank], err = comms[rank].MemoryChannels(t.Context(), buffer, communicator.MemoryChannelOptions{})
		return err
	})
	comms[0].Abort(errors.New("the disk is full"))
	<-comms[1].Done()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	bad := ranks(t, 2)
	bad[1].Abort(errors.New("a second failure"))
	for rank, err := range outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].Reform(t.Context(), bad[rank], all[rank].stream)
		return err
	}) {
		if err == nil {
			t.Errorf("rank %d: re-formed over a bootstrap that has failed", rank)
		}
	}
	for rank, err := range outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].Reform(over, ranks(t, 1)[0])
		return err
	}) {
		failing(t, rank, err, mscclgo.ErrAborted)
	}
	boots := ranks(t, 2)
	next := make([]*communicator.Communicator, 2)
	each(t, 2, func(rank int) (err error) {
		if next[rank], err = comms[rank].Reform(t.Context(), boots[rank]); err != nil {
			return err
		}
		captured, err := channels[rank].Reform(t.Context(), next[rank])
		if err == nil && !captured {
			err = errors.New("captured graphs are not right")
		}
		if err != nil {
			return err
		}
		if err := all[rank].launch("meet", 1, 2, channels[rank].Handles); err != nil {
			return err
		}
		return errors.Join(next[rank].Synchronize(t.Context(), all[rank].stream), all[rank].want(done, done), next[rank].Err())
	})
	if t.Failed() {
		t.FailNow()
	}
	if _, err := comms[0].Reform(t.Context(), boots[0]); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("re-formed twice: %v", err)
	}
	if _, err := next[0].Reform(t.Context(), nil); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("re-formed without a bootstrap: %v", err)
	}
	comms[0].Abort(errors.New("late")) // must not reach the new group
	if err := comms[0].Err(); err == nil {
		t.Error("the old group has no error")
	}
	each(t, 2, func(rank int) error {
		if err := all[rank].launch("meet", 1, 2, channels[rank].Handles); err != nil {
			return err
		}
		return errors.Join(next[rank].Synchronize(t.Context(), all[rank].stream), all[rank].want(done, done))
	})
	each(t, 2, func(rank int) error {
		return errors.Join(next[rank].Close(), channels[rank].Close(), comms[rank].Close())
	})
}

// leaving is a bootstrap whose caller's context ends in an exchange, when its part has been sent.
type leaving struct {
	*bootstrap.Bootstrap
	exchanges int // until then; negative once it has ended
}

func (l *leaving) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := l.Bootstrap.AllGather(ctx, mine)
	if l.exchanges--; l.exchanges == 0 {
		l.exchanges = -1 << 20
		return nil, mscclgo.Errorf(mscclgo.ErrAborted, "test: all-gather", "the context ended").At(l.Rank(), mscclgo.NoRank)
	}
	return all, err
}

// TestReformLeft has the context of one rank end in each exchange of Reform. It calls Reform again, with another
// bootstrap, and so does the other, also where Reform has worked there.
func TestReformLeft(t *testing.T) {
	for exchange := 1; !t.Failed(); exchange++ {
		comms := group(t, 2, communicator.Options{})
		all, channels := workers(t, comms), make([]*communicator.MemoryChannels, 2)
		each(t, 2, func(rank int) (err error) {
			channels[rank], err = comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{})
			return err
		})
		boots := ranks(t, 2)
		left := &leaving{Bootstrap: boots[1], exchanges: exchange}
		each(t, 2, func(rank int) (err error) {
			boot := communicator.Bootstrap(boots[0])
			if rank == 1 {
				boot = left
			}
			next, err := comms[rank].Reform(t.Context(), boot)
			if err == nil {
				comms[rank] = next
			} else {
				boots[rank].Abort(err) // as programs do, so that the other knows
			}
			return nil
		})
		if left.exchanges > 0 {
			if exchange == 1 {
				t.Error("Reform made no exchange")
			}
			break
		}
		again := ranks(t, 2)
		each(t, 2, func(rank int) (err error) {
			if comms[rank], err = comms[rank].Reform(t.Context(), again[rank]); err != nil {
				return err
			}
			if _, err := channels[rank].Reform(t.Context(), comms[rank]); err != nil {
				return err
			}
			return errors.Join(all[rank].launch("meet", 1, 2, channels[rank].Handles), comms[rank].Synchronize(t.Context(), all[rank].stream),
				all[rank].want(done, done), channels[rank].Close(), comms[rank].Close())
		})
		if t.Failed() {
			t.Logf("the context ended in exchange %d", exchange)
		}
	}
}

// TestReformNever closes a communicator that Reform could not bring into a group.
func TestReformNever(t *testing.T) {
	comms := group(t, 1, communicator.Options{})
	boot := ranks(t, 1)[0]
	boot.Abort(errors.New("it has failed"))
	testerr.Must(comms[0].Group(t.Context()))(t)
	if _, err := comms[0].Reform(t.Context(), boot); err == nil {
		t.Fatal("re-formed over a bootstrap that has failed")
	}
	testerr.Report(t, comms[0].Close())
	if _, err := comms[0].Reform(t.Context(), slices.Clone(ranks(t, 1))[0]); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("re-formed after Close: %v", err)
	}
}

// TestReformEthernet has port channels over Ethernet live on, as those across hosts do.
func TestReformEthernet(t *testing.T) {
	const n, rounds = 3, 3
	comms := group(t, n, communicator.Options{Transports: registeredmem.Ethernet})
	all := workers(t, comms)
	locals := make([]*gpu.Buffer, n)
	ports := make([]*communicator.PortChannels, n)
	services := make([]*proxyservice.ProxyService, n)
	gather := func(rank int) error {
		c, w := comms[rank], all[rank]
		data := make([]byte, n*reformPart)
		copy(data[rank*reformPart:], bytes.Repeat([]byte{byte(rank + 1)}, reformPart))
		if err := errors.Join(gpu.CopyIn(locals[rank], data), c.Barrier(t.Context())); err != nil {
			return err
		}
		w.comm = c
		if err := w.run(t.Context(), "portGather", 64, ports[rank].Handles, n, rank, reformPart, rounds); err != nil {
			return err
		}
		return gathered(locals[rank], n)
	}
	each(t, n, func(rank int) (err error) {
		c := comms[rank]
		if locals[rank], err = c.Device().Alloc(n * reformPart); err != nil {
			return err
		}
		if services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
			return err
		}
		if ports[rank], err = c.PortChannels(t.Context(), services[rank], locals[rank], communicator.PortChannelOptions{}); err != nil {
			return err
		}
		return gather(rank)
	})
	if t.Failed() {
		t.FailNow()
	}
	comms[1].Abort(errors.New("the disk is full"))
	boots := ranks(t, n)
	each(t, n, func(rank int) error {
		if err := services[rank].Close(); err != nil {
			return err
		}
		c, err := comms[rank].Reform(t.Context(), boots[rank], all[rank].stream)
		if err != nil {
			return err
		}
		comms[rank] = c
		if services[rank], err = c.ProxyService(t.Context(), proxyservice.ServiceOptions{}); err != nil {
			return err
		}
		captured, err := ports[rank].Reform(t.Context(), c, services[rank])
		if err == nil && !captured {
			err = errors.New("captured graphs are not right")
		}
		if err != nil {
			return err
		}
		return gather(rank)
	})
	each(t, n, func(rank int) error {
		return errors.Join(services[rank].Close(), comms[rank].Close(), ports[rank].Close(), locals[rank].Close())
	})
}

// TestReformJoined has the device that Join opened be closed with the last communicator.
func TestReformJoined(t *testing.T) {
	aloneInEnv(t)
	first := testerr.Must(communicator.Join(t.Context(), communicator.Options{Device: testdev.Name(t, 0)}))(t)
	next := testerr.Must(first.Reform(t.Context(), ranks(t, 1)[0]))(t)
	testerr.Report(t, first.Close())
	if _, err := next.Group(t.Context()); err != nil {
		t.Error(err)
	}
	testerr.Report(t, next.Close())
	if _, err := next.Device().Alloc(1); err == nil {
		t.Error("the device is still open")
	}
}

// TestReformOfAnother refuses to carry what belongs to another group.
func TestReformOfAnother(t *testing.T) {
	comms := group(t, 1, communicator.Options{})
	buffer := testerr.Must(comms[0].Device().Alloc(1 << 12))(t)
	defer buffer.Close()
	channels := testerr.Must(comms[0].MemoryChannels(t.Context(), buffer, communicator.MemoryChannelOptions{}))(t)
	peers := testerr.Must(comms[0].Share(t.Context(), buffer))(t)
	other := group(t, 1, communicator.Options{})
	for _, c := range []*communicator.Communicator{comms[0], other[0]} {
		_, err := channels.Reform(t.Context(), c)
		failing(t, 0, err, mscclgo.ErrInvalid, "Reform has turned into this one")
		_, err = peers.Reform(t.Context(), c)
		failing(t, 0, err, mscclgo.ErrInvalid, "Reform has turned into this one")
	}
}

// TestReformMany carries memory of more ranks than handles hold the addresses of: the handles
// stay as they were, and what they point to is right for the new group.
func TestReformMany(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("a test of the host's part, for which one kind of device is enough")
	}
	const n = layout.RanksByValue + 2
	o := communicator.Options{Scratch: 1 << 12, HeartbeatTimeout: -1}
	comms := group(t, n, o)
	next := ranks(t, n)
	reformed := make([]*communicator.Communicator, n)
	each(t, n, func(rank int) error {
		c := comms[rank]
		peers, err := c.Share(t.Context(), upload(t, c.Device(), 0, 64))
		if err != nil {
			return err
		}
		handle, err := peers.Handle()
		if err != nil {
			return err
		}
		group, err := c.Group(t.Context())
		if err != nil {
			return err
		}
		if reformed[rank], err = c.Reform(t.Context(), next[rank]); err != nil {
			return err
		}
		captured, err := peers.Reform(t.Context(), reformed[rank])
		if err != nil {
			return err
		}
		newGroup, err := reformed[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if newGroup != group {
			t.Errorf("rank %d: the group's handle changes", rank)
		}
		// A graph that was captured before has the handle, and nobody has asked for it since.
		for range 2 {
			if !captured {
				t.Errorf("rank %d: a graph that was captured before may not be launched", rank)
			}
			testcmp.Equal(t, fmt.Sprintf("rank %d: the table", rank), tableOf(t, c.Device(), handle.Internal().More, n), addressesFrom(peers))
			if again, err := peers.Handle(); err != nil || again != handle {
				t.Errorf("rank %d: the memory's handle changes, %v", rank, err)
			}
		}
		if err := peers.Close(); err != nil {
			return err
		}
		_, err = peers.Handle()
		failing(t, rank, err, mscclgo.ErrInvalid, "closed")
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
	closeAll(t, reformed)
}

// tableOf returns the addresses that follow the addresses in a handle.
func tableOf(t *testing.T, d *gpu.Device, at gpu.Ptr, ranks int) []gpu.Ptr {
	t.Helper()
	got := make([]gpu.Ptr, ranks-layout.RanksByValue)
	b, err := d.Wrap(at, 8*uint64(len(got)))
	if err == nil {
		err = errors.Join(gpu.CopyOut(got, b), b.Close())
	}
	testerr.Report(t, err)
	return got
}

// addressesFrom returns where the buffers of the ranks are that handles do not hold.
func addressesFrom(p *communicator.PeerMemory) (at []gpu.Ptr) {
	for _, m := range p.Memories[layout.RanksByValue:] {
		at = append(at, m.Buffer().Ptr())
	}
	return at
}
