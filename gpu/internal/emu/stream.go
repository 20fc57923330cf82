package emu

// #include "memory.h"
import "C"

import (
	"context"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/race"
)

// step is one operation of a stream.
type step struct {
	run func() error
	// launch, unless nil, is what begins instead of run, so that the next step may begin beside it;
	// see kernel.begin.
	launch  func(beside *flight, after race.Clock) (*flight, error)
	overlap bool // it may begin beside the launch before it

	after race.Clock // what the host knew, for the race finder

	// done, unless nil, is called after run, or instead of it if the stream has failed
	// or the device is being closed.
	done func(error)
}

// maker makes the step of a call, for the work queue that runs it. A graph keeps makers, since each
// launch needs new steps, and may be on another stream than the call was.
type maker func(by *workQueue) (step, error)

// mostQueued is the most calls that a stream's queue holds. The next call waits, as with
// a GPU, so that a host far ahead of its device does not use up memory.
const mostQueued = 1 << 14

// stream is a device's view of a work queue: its own, or another device's that it
// wraps.
type stream struct {
	dev *device
	*workQueue
	wrapped bool // another closes the work queue
}

// workQueue runs what is queued on a goroutine that exists while there is work.
type workQueue struct {
	owner *device

	mu      sync.Mutex
	handle  handle   // 0 until it is asked for
	closed  bool     // by the owner's Close
	queue   [][]step // one entry a call
	room    sync.Cond
	working bool     // the goroutine exists
	pending int      // calls whose work has not ended
	err     error    // the first failure; later work does not run
	capture *capture // not nil while capturing
	last    *mark    // of Synchronize, while nothing is queued after it
	native  *queue   // not nil once threads in C may use the stream
	race    *race.Sequence
	lead    *race.Clock    // what the launch was after that the next may begin beside, or nil
	party   *explore.Party // of the explorer, or nil
	turns   bool           // the goroutine has the party's turns; set before it begins
}

func newWorkQueue(owner *device) *workQueue {
	l := &workQueue{owner: owner, race: owner.raced()}
	l.room.L = &l.mu
	return l
}

func (d *device) NewStream() (backend.Stream, error) {
	return &stream{dev: d, workQueue: newWorkQueue(d)}, nil
}

// do queues the step of a call or, while the stream captures, keeps its maker.
func (s *stream) do(op string, m maker) error {
	m = s.guarded(op, m)
	s.dev.turns.Self().Step(op)
	s.giveTurns(op)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.open(op); err != nil {
		return err
	}
	if s.capture != nil {
		s.capture.add(s.workQueue, m)
		return nil
	}
	s.waitForRoom()
	return s.enqueue(op, m)
}

// giveTurns has others have the turn, of a caller that has it, while the queue is full.
func (s *stream) giveTurns(op string) {
	s.dev.turns.Self().Until(op, false, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) < mostQueued || s.capture != nil
	})
}

// waitForRoom waits while the queue is full. The caller holds mu.
func (w *workQueue) waitForRoom() {
	for len(w.queue) >= mostQueued {
		w.room.Wait()
	}
}

// enqueue queues the steps of all makers, or none. The caller holds mu.
func (w *workQueue) enqueue(op string, makers ...maker) error {
	steps := make([]step, 0, len(makers))
	drop := func(err error) error {
		for _, st := range steps {
			st.finish(err)
		}
		return err
	}
	for _, m := range makers {
		st, err := m(w)
		if err != nil {
			return drop(err)
		}
		steps = append(steps, st)
	}
	if len(steps) == 0 {
		return nil
	}
	if !w.working {
		if err := w.owner.begin(op); err != nil {
			return drop(err)
		}
		w.working = true
		w.turns = w.takesPart(op)
		go w.work(w.turns)
	}
	w.after(steps)
	w.native.bar() // until it has run: see advance
	w.queue = append(w.queue, steps)
	w.pending++
	w.last = nil
	return nil
}

func (st step) finish(err error) {
	if st.done != nil {
		st.done(err)
	}
}

// work runs the queue until it is empty, in its turns if it takes part in what is explored.
func (w *workQueue) work(explored bool) {
	if explored {
		w.party.Await()
	} else {
		defer w.owner.end()
	}
	var beside *flight // the launch before, if it goes on
	for {
		w.mu.Lock()
		if len(w.queue) == 0 {
			w.working = false
			w.mu.Unlock()
			if explored {
				w.owner.end() // before another one has its turn
				w.party.Rest()
			}
			return
		}
		steps := w.queue[0]
		w.queue[0] = nil
		w.queue = w.queue[1:]
		err := w.err
		w.room.Signal()
		w.mu.Unlock()
		for i, st := range steps {
			if explored {
				w.party.Operation()
			}
			var f *flight
			if err == nil {
				f, err = w.begin(st, beside)
			}
			if beside != nil {
				failed := beside.end()
				w.ended(beside.of, beside.last, failed)
				beside = nil
				switch {
				case f != nil && failed != nil:
					f.cancel()
					f.end()
					f, err = nil, failed
				case f != nil:
					f.lead(w.race.Clock())
				case err == nil:
					err = failed
				}
				if explored {
					w.party.Event()
				}
			}
			last := i == len(steps)-1
			if f != nil {
				f.of, f.last = st, last
				if f.beside(func() bool { return w.overlapNext(steps[i+1:]) }) {
					beside = f
					continue
				}
				err = f.end()
			}
			w.ended(st, last, err)
			if explored {
				w.party.Event()
			}
		}
	}
}

// begin runs a step, or has its launch begin.
func (w *workQueue) begin(st step, beside *flight) (*flight, error) {
	if err := w.owner.open("run queued work"); err != nil {
		return nil, err
	}
	w.race.Learn(st.after)
	if st.launch != nil {
		return st.launch(beside, st.after)
	}
	w.lead = nil
	return nil, st.run()
}

// overlapNext reports whether the next step, the first of those or else of the queue, may begin
// beside the launch before it.
func (w *workQueue) overlapNext(steps []step) bool {
	if len(steps) == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.queue) == 0 {
			return false
		}
		steps = w.queue[0]
	}
	return steps[0].overlap
}

// ended is called when a step has ended, the last of its call or not.
func (w *workQueue) ended(st step, last bool, err error) {
	w.advance(err, last)
	st.finish(err)
}

// advance updates the state after a step, the last of its call or not, before its done
// is called.
func (w *workQueue) advance(err error, last bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && err != nil {
		w.native.bar() // never unbarred
	}
	w.err = err
	if last {
		w.pending--
		w.native.unbar()
	}
}

// open returns an error if the device is being closed, and counts the work as lost.
func (d *device) open(what string) error {
	select {
	case <-d.ending:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.lost++
		return mscclgo.Errorf(mscclgo.ErrAborted, d.op("%s", what), "the device was closed")
	default:
		return nil
	}
}

func (s *stream) Copy(dst, src, n uint64) error {
	from := s.dev.race.Here()
	return s.do(s.dev.op("copy %d bytes", n), func(by *workQueue) (step, error) {
		return step{run: func() error {
			by.race.Copy(s.dev.info.Name, from, dst, src, n)
			ok := C.memory_copy(C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n))
			return s.dev.accessed(ok, "copy %d bytes from %#x to %#x", n, src, dst)
		}}, nil
	})
}

func (s *stream) Fill(dst uint64, value byte, n uint64) error {
	from := s.dev.race.Here()
	return s.do(s.dev.op("fill %d bytes", n), func(by *workQueue) (step, error) {
		return step{run: func() error {
			by.race.Fill(s.dev.info.Name, from, dst, n)
			return s.dev.accessed(s.dev.fill(dst, value, n), "fill %d bytes at %#x", n, dst)
		}}, nil
	})
}

func (s *stream) WriteValue64(dst, value uint64) error {
	return s.do(s.dev.op("write a value"), func(by *workQueue) (step, error) {
		return step{run: func() error {
			by.race.Store(s.dev.info.Name, dst, value)
			ok := C.memory_write64(C.uint64_t(dst), C.uint64_t(value))
			return s.dev.accessed(ok, "write a value to %#x", dst)
		}}, nil
	})
}

// PrepareAtomics has nothing to load.
func (*device) PrepareAtomics() error { return nil }

func (s *stream) Add64(dst, value uint64) error {
	return s.do(s.dev.op("add to a word"), func(by *workQueue) (step, error) {
		return step{run: func() error {
			if _, done := by.race.Add(s.dev.info.Name, dst, value); done {
				return nil
			}
			return s.dev.accessed(C.memory_add64(C.uint64_t(dst), C.uint64_t(value)), "add to the word at %#x", dst)
		}}, nil
	})
}

func (s *stream) Exchange64(dst, value, old uint64) error {
	from := s.dev.race.Here()
	return s.do(s.dev.op("exchange a word"), func(by *workQueue) (step, error) {
		return step{run: func() error {
			had, done := by.race.Exchange(s.dev.info.Name, from, dst, value, old)
			was := C.uint64_t(had)
			if !done && !bool(C.memory_exchange64(C.uint64_t(dst), C.uint64_t(value), &was)) {
				return s.dev.accessed(false, "exchange the word at %#x", dst)
			}
			return s.dev.accessed(C.memory_write64(C.uint64_t(old), was), "store what the word at %#x was at %#x", dst, old)
		}}, nil
	})
}

func (s *stream) WaitValue64(src, value uint64, equal bool) error {
	op := "wait for a value"
	return s.do(s.dev.op("%s", op), func(by *workQueue) (step, error) {
		return step{run: func() error {
			pause := time.Microsecond
			by.race.Expect(src)
			if by.inTurn() {
				by.party.Until(op, true, func() bool {
					return C.memory_wait64(C.uint64_t(src), C.uint64_t(value), C.bool(equal)) != C.MEMORY_NOT_YET
				})
			}
			for {
				reached := C.memory_wait64(C.uint64_t(src), C.uint64_t(value), C.bool(equal))
				if reached != C.MEMORY_NOT_YET {
					if reached == C.MEMORY_REACHED {
						by.race.Await(s.dev.info.Name, src, value, equal)
					}
					return s.dev.accessed(reached == C.MEMORY_REACHED, "wait for a value at %#x", src)
				}
				if err := s.dev.open(op); err != nil {
					return err
				}
				time.Sleep(pause)
				pause = min(2*pause, 100*time.Microsecond)
			}
		}}, nil
	})
}

func (s *stream) Query() (bool, error) {
	s.dev.turns.Self().Poll("query a stream")
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.idleable("query a stream"); err != nil {
		return false, err
	}
	s.native.settle()
	if s.pending == 0 && s.race != nil {
		s.owner.race.HostLearn(s.race.Clock())
	}
	return s.pending == 0, s.err
}

// idleable returns an error if the stream captures or is closed. The caller holds mu.
func (s *stream) idleable(what string) error {
	if err := s.open(s.dev.op("%s", what)); err != nil || s.capture == nil {
		return err
	}
	return mscclgo.Errorf(mscclgo.ErrInvalid, s.dev.op("%s", what), "the stream is capturing; end the capture first")
}

func (s *stream) Synchronize(ctx context.Context) error {
	op := s.dev.op("synchronize a stream")
	m, err := s.mark(op)
	if err != nil {
		return err
	}
	return m.wait(ctx, op)
}

// mark returns a mark after all queued work.
func (s *stream) mark(op string) (*mark, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.idleable("synchronize a stream"); err != nil {
		return nil, err
	}
	m := newMark(s.workQueue)
	switch {
	case s.pending == 0:
		s.native.settle()
		m.reach()
		m.finish(s.err)
	case s.last != nil:
		return s.last, nil
	default:
		if err := s.enqueue(op, m.step); err != nil {
			return nil, err
		}
		s.last = m
	}
	return m, nil
}

// Close does not wait for queued work, which still runs. It leaves a wrapped stream
// alone.
func (s *stream) Close() error {
	if !s.wrapped {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.closed = true
		s.handle.end()
	}
	return nil
}
