package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// survivors are ranks of this process.
type survivors struct {
	t       *testing.T
	ctx     context.Context
	options communicator.Options
	devices []*gpu.Device
	all     []*survivor
}

func newSurvivors(t *testing.T, most int, o communicator.Options) *survivors {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	s := &survivors{t: t, ctx: ctx, options: o, all: make([]*survivor, most)}
	for i := range most {
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

// goOn makes the first n ranks a group: those that are nil begin. Each does something there. It returns
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
		if kept[rank], err = r.enter(s.ctx, boots[rank], s.devices[rank], s.options); err != nil {
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

// want fails the test unless the graphs of all survivors are right, or those of none.
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
	s := newSurvivors(t, 4, communicator.Options{Scratch: 1 << 20})
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
	if err := gone.close(s.ctx); err != nil {
		t.Error(err)
	}
	s.all[2] = nil
	s.want(s.goOn(3, s.works), false) // with a newcomer
	s.all[0].comm.Abort(errors.New("the disk is full again"))
	s.want(s.goOn(3, s.works), true)
	s.want(s.goOn(4, s.works), false) // with one more
	s.want(s.goOn(4, s.works), true)
	s.close()
}
