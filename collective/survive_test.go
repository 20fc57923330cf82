package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// survivors are ranks of this process.
type survivors struct {
	t       *testing.T
	ctx     context.Context
	options []communicator.Options // by rank
	devices []*gpu.Device
	all     []*survivor
}

// newSurvivors returns ranks that begin as soon as goOn wants them, with these options.
func newSurvivors(t *testing.T, options []communicator.Options) *survivors {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	s := &survivors{t: t, ctx: ctx, options: options, all: make([]*survivor, len(options))}
	for i := range options {
		options[i].Scratch, options[i].Timeout = 1<<20, time.Minute
		s.devices = append(s.devices, testdev.Open(t, i))
	}
	return s
}

// newBoots returns bootstraps of a new group of the first n ranks, which are closed when the test ends.
func newBoots(s *survivors, n int) []*bootstrap.Bootstrap {
	s.t.Helper()
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	defer rendezvous.Close()
	boots := make([]*bootstrap.Bootstrap, n)
	s.each(n, func(rank int) (err error) {
		boots[rank], err = bootstrap.Connect(s.ctx, bootstrap.Options{Rank: rank, Size: n, ID: rendezvous.ID()})
		return err
	})
	s.t.Cleanup(func() {
		var all sync.WaitGroup
		for _, b := range boots {
			all.Go(func() { b.Close() })
		}
		all.Wait()
	})
	return boots
}

// each calls f for the first n ranks at the same time.
func (s *survivors) each(n int, f func(rank int) error) {
	s.t.Helper()
	var ranks sync.WaitGroup
	for rank := range n {
		ranks.Go(func() {
			if err := f(rank); err != nil {
				s.t.Errorf("rank %d of %d: %v", rank, n, err)
			}
		})
	}
	ranks.Wait()
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// goOn makes the first n ranks a group. Ranks that are nil begin anew. Each does something there. It returns
// whether the graphs of the others are right.
func (s *survivors) goOn(n int, then func(*survivor) error) []bool {
	s.t.Helper()
	kept, boots := make([]bool, n), newBoots(s, n)
	s.each(n, func(rank int) (err error) {
		defer func() {
			if err != nil {
				boots[rank].Abort(err)
			}
		}()
		if s.all[rank] == nil {
			s.all[rank] = &survivor{}
		}
		r := s.all[rank]
		survives, before := r.in != nil, bytes.Repeat([]byte{0xab}, survivorSlot)
		if survives {
			if err := errors.Join(gpu.CopyIn(r.in, before), gpu.CopyIn(r.out, before)); err != nil {
				return err
			}
		}
		if kept[rank], err = r.enter(s.ctx, boots[rank], s.devices[rank], s.options[rank]); err != nil {
			return err
		}
		for _, b := range []*gpu.Buffer{r.in, r.out} {
			after := make([]byte, len(before))
			if err := gpu.CopyOut(after, b); survives && (err != nil || !bytes.Equal(after, before)) {
				return fmt.Errorf("the caller's data are not as before: %v", err)
			}
		}
		return then(r)
	})
	return kept
}

// want fails the test unless the graphs of all survivors are right, or, with want false, none of them.
func (s *survivors) want(kept []bool, want bool) {
	s.t.Helper()
	for rank, k := range kept {
		if k != want {
			s.t.Fatalf("the captured graph of rank %d is right: %v, want %v", rank, k, want)
		}
	}
}

func (s *survivors) works(r *survivor) error {
	return errors.Join(r.works(s.ctx), r.works(s.ctx))
}

func (s *survivors) close() {
	s.t.Helper()
	s.each(len(s.all), func(rank int) error { return s.all[rank].close(s.ctx) })
}

// TestRunnerReform has the ranks of a process fail and go on with their runners, and graphs of all kinds of
// calls live on; then fewer go on, for which the graphs are refused, and more.
func TestRunnerReform(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 4))
	s.goOn(3, s.works)
	for range 2 {
		s.all[1].comm.Abort(errors.New("the disk is full"))
		s.want(s.goOn(3, s.works), true)
	}
	s.want(s.goOn(3, s.works), true) // of a group that works

	gone := s.all[2]
	gone.comm.Abort(errors.New("it leaves"))
	old := make([]*gpu.Graph, 2)
	for rank := range old {
		old[rank], s.all[rank].graph = s.all[rank].graph, nil // so that enter does not close it
	}
	s.goOn(2, func(r *survivor) error {
		err := old[r.comm.Rank()].Launch(r.stream)
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "capture it again") {
			return fmt.Errorf("a graph of three ranks was launched by two: %v", err)
		}
		return errors.Join(old[r.comm.Rank()].Close(), s.works(r))
	})
	testerr.Report(t, gone.close(s.ctx))
	s.all[2] = nil
	s.want(s.goOn(3, s.works), false) // with a newcomer
	s.all[0].comm.Abort(errors.New("the disk is full again"))
	s.want(s.goOn(3, s.works), true)
	s.want(s.goOn(4, s.works), false) // with one more
	s.want(s.goOn(4, s.works), true)
	s.close()
}

// TestReformHosts is TestRunnerReform with ranks on several hosts, whose data go through channels.
func TestReformHosts(t *testing.T) {
	s := newSurvivors(t, testgroup.Network(0, 0, 1, 1))
	s.goOn(4, s.works)
	s.all[1].comm.Abort(errors.New("the disk is full"))
	s.want(s.goOn(4, s.works), true)
	s.want(s.goOn(4, s.works), true) // of a group that works

	gone := s.all[3]
	gone.comm.Abort(errors.New("it leaves"))
	s.want(s.goOn(3, s.works), false)
	testerr.Report(t, gone.close(s.ctx))
	s.all[3] = nil
	s.want(s.goOn(4, s.works), false) // with a newcomer
	s.all[2].comm.Abort(errors.New("the network is down"))
	s.want(s.goOn(4, s.works), true)
	s.close()
}

// TestPlacesReform has messages in graphs that are stored where they belong. A memory that was not carried to the
// next group offers no place there. Once it was, the graphs are right where the senders have it mapped as before, and
// are refused elsewhere.
func TestPlacesReform(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 3))
	for rank := range s.all {
		s.all[rank] = &survivor{large: 1 << 10}
	}
	shift := func(r *survivor) error {
		g, n, me := r.runner.Group(), r.comm.Size(), r.comm.Rank()
		g.Send(r.stream, r.in, survivorPart, I32, (me+1)%n)
		g.Recv(r.stream, r.out, survivorPart, I32, (me+n-1)%n)
		return g.Launch()
	}
	shifted := func(r *survivor, queue func() error) error {
		n, me := r.comm.Size(), r.comm.Rank()
		in, out := make([]int32, survivorPart), make([]int32, survivorPart)
		for i := range in {
			in[i] = int32(1000*me + i)
		}
		if err := errors.Join(gpu.CopyIn(r.in, in), gpu.CopyIn(r.out, out), r.comm.Barrier(s.ctx), queue(), r.comm.Synchronize(s.ctx, r.stream), gpu.CopyOut(out, r.out)); err != nil {
			return err
		}
		for i, got := range out {
			if want := int32(1000*((me+n-1)%n) + i); got != want {
				return fmt.Errorf("element %d is %d, not %d", i, got, want)
			}
		}
		return nil
	}
	graphs := make([]*gpu.Graph, 3)
	s.goOn(3, func(r *survivor) (err error) {
		if err := r.stream.BeginCapture(); err != nil {
			return err
		}
		failed := shift(r)
		graphs[r.comm.Rank()], err = r.stream.EndCapture()
		if err := errors.Join(failed, err); err != nil {
			return err
		}
		if !r.outAll.offered {
			return errors.New("no place was offered")
		}
		return s.works(r)
	})
	for moved := range 2 {
		s.all[1].comm.Abort(errors.New("the disk is full"))
		boots := newBoots(s, 3)
		s.each(3, func(rank int) (err error) {
			r := s.all[rank]
			<-r.comm.Done()
			if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err != nil {
				return err
			}
			if captured, err := r.runner.Reform(s.ctx, r.comm); err != nil || !captured {
				return fmt.Errorf("the runner is carried: %v, %v", captured, err)
			}
			r.outAll.offered = false
			if err := shifted(r, func() error { return shift(r) }); err != nil {
				return fmt.Errorf("before the memory is carried: %w", err)
			}
			if r.outAll.offered {
				return errors.New("a memory of the group before offered a place")
			}
			r.outAll.offered = true
			if moved == 1 { // as if the senders had mapped it elsewhere
				r.outAll.placed.print[0] ^= 1
			}
			if captured, err := r.outAll.Reform(s.ctx); err != nil || captured != (moved == 0) {
				return fmt.Errorf("the memory is carried: %v, %v", captured, err)
			}
			if moved == 1 {
				return refused("a graph of places that have moved", graphs[rank].Launch(r.stream), "capture it again")
			}
			return shifted(r, func() error { return graphs[rank].Launch(r.stream) })
		})
	}
	for _, g := range graphs {
		testerr.Report(t, g.Close())
	}
	s.close()
}

// TestCloseNotCarried has a survivor close its runner with a memory that it did not carry, and a newcomer,
// which has none, close its own: they wait for each other in the same calls only.
func TestCloseNotCarried(t *testing.T) {
	s := newSurvivors(t, make([]communicator.Options, 2))
	type rankOf struct {
		comm   *communicator.Communicator
		runner *Runner
		stream *gpu.Stream
		data   *gpu.Buffer
	}
	begin := func(r *rankOf, boot *bootstrap.Bootstrap, rank int) (err error) {
		if r.comm, err = communicator.New(s.ctx, boot, s.devices[rank], s.options[rank]); err != nil {
			return err
		}
		r.runner, err = New(s.ctx, r.comm, Options{})
		return err
	}
	ranks, boots := make([]rankOf, 2), newBoots(s, 2)
	s.each(2, func(rank int) (err error) {
		r := &ranks[rank]
		if err := begin(r, boots[rank], rank); err != nil {
			return err
		}
		if r.stream, err = s.devices[rank].NewStream(); err != nil {
			return err
		}
		if r.data, err = s.devices[rank].Alloc(1024); err != nil {
			return err
		}
		_, err = r.runner.Share(s.ctx, r.data)
		return err
	})
	ranks[1].comm.Abort(errors.New("the disk is full"))
	gone := ranks[1]
	ranks[1] = rankOf{}
	boots = newBoots(s, 2)
	s.each(2, func(rank int) (err error) {
		r := &ranks[rank]
		if rank == 1 {
			err = begin(r, boots[rank], rank)
		} else {
			<-r.comm.Done()
			if r.comm, err = r.comm.Reform(s.ctx, boots[rank], r.stream); err == nil {
				_, err = r.runner.Reform(s.ctx, r.comm)
			}
		}
		if err != nil {
			return err
		}
		if err := r.runner.Close(s.ctx); err != nil {
			return err
		}
		if _, err := r.comm.AllGather(s.ctx, nil); err != nil {
			return fmt.Errorf("after the runner is closed: %w", err)
		}
		return errors.Join(r.comm.Close(), r.stream.Close(), r.data.Close())
	})
	testerr.Report(t, errors.Join(gone.runner.Close(s.ctx), gone.comm.Close(), gone.stream.Close(), gone.data.Close()))
}

// TestPrintsOfPlans has a call that copies nothing, and then one that copies. What a graph of the first call
// holds must not change by that, since the next group prepares the calls in another order.
func TestPrintsOfPlans(t *testing.T) {
	tuning := &Tuning{Rules: []Rule{
		{Link: "*", Kind: AllReduce, UpTo: math.MaxUint64, Choice: Choice{"pushed", 4, 64}},
		{Link: "*", Kind: Broadcast, UpTo: math.MaxUint64, Choice: Choice{"LL16", 4, 64}},
	}}
	testgroup.Run(t, 2, communicator.Options{Scratch: 1 << 20}, func(ctx context.Context, comm *communicator.Communicator) error {
		r := testerr.Must(New(ctx, comm, Options{Tuning: tuning}))(t)
		defer r.Close(ctx)
		b := testerr.Must(comm.Device().Alloc(1024))(t)
		stream := testerr.Must(comm.Device().NewStream())(t)
		testerr.Check(t, r.Broadcast(stream, b, b, 100, I32, 0))
		var c *anyCall
		for _, c = range r.calls {
		}
		before := c.plan.validity.print
		testerr.Check(t, r.AllReduce(stream, b, b, 100, I32, Sum))
		if r.own[forIn].peers() == r.own[forOut].peers() {
			t.Error("the all-reduce made no staging")
		}
		delete(r.plans, c.planKey())
		again := testerr.Must(r.newPlan(ctx, c))(t)
		if again.validity.print != before {
			t.Error("another call's staging has changed the broadcast's print")
		}
		return errors.Join(stream.Synchronize(ctx), stream.Close())
	})
}
