package emu

// #include "memory.h"
import "C"

import (
	"context"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// step is one operation of a stream.
type step struct {
	run func() error
	// done, unless nil, is called after run, or instead of it if the stream has failed
	// or the device is being closed.
	done func(error)
}

// maker makes the step of a call. A graph keeps makers, since each launch needs new
// steps.
type maker func() (step, error)

// mostQueued is the most calls that a stream's queue holds. The next call waits, as with
// a GPU, so that a host far ahead of its device does not use up memory.
const mostQueued = 1 << 14

// stream runs its queue on a goroutine that exists while there is work.
type stream struct {
	dev *device

	mu      sync.Mutex
	queue   [][]step // one entry a call
	room    sync.Cond
	working bool   // the goroutine exists
	pending int    // calls whose work has not ended
	err     error  // the first failure; later work does not run
	capture *graph // not nil while capturing
	last    *mark  // of Synchronize, while nothing is queued after it
	native  *queue // not nil once threads in C may use the stream
}

func (d *device) NewStream() (backend.Stream, error) {
	s := &stream{dev: d}
	s.room.L = &s.mu
	return s, nil
}

// do queues the step of a call or, while the stream captures, keeps its maker.
func (s *stream) do(op string, m maker) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture != nil {
		s.capture.makers = append(s.capture.makers, m)
		return nil
	}
	s.waitForRoom()
	return s.enqueue(op, m)
}

// waitForRoom waits while the queue is full. The caller holds mu.
func (s *stream) waitForRoom() {
	for len(s.queue) >= mostQueued {
		s.room.Wait()
	}
}

// enqueue queues the steps of all makers, or none. The caller holds mu.
func (s *stream) enqueue(op string, makers ...maker) error {
	steps := make([]step, 0, len(makers))
	drop := func(err error) error {
		for _, st := range steps {
			st.finish(err)
		}
		return err
	}
	for _, m := range makers {
		st, err := m()
		if err != nil {
			return drop(err)
		}
		steps = append(steps, st)
	}
	if len(steps) == 0 {
		return nil
	}
	if !s.working {
		if err := s.dev.begin(op); err != nil {
			return drop(err)
		}
		s.working = true
		go s.work()
	}
	s.native.bar() // until it has run: see advance
	s.queue = append(s.queue, steps)
	s.pending++
	s.last = nil
	return nil
}

func (st step) finish(err error) {
	if st.done != nil {
		st.done(err)
	}
}

// work runs the queue until it is empty.
func (s *stream) work() {
	defer s.dev.end()
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.working = false
			s.mu.Unlock()
			return
		}
		steps := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		err := s.err
		s.room.Signal()
		s.mu.Unlock()
		for i, st := range steps {
			if err == nil {
				if err = s.dev.open("run queued work"); err == nil {
					err = st.run()
				}
			}
			s.advance(err, i == len(steps)-1)
			st.finish(err)
		}
	}
}

// advance updates the state after a step, the last of its call or not, before its done
// is called.
func (s *stream) advance(err error, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && err != nil {
		s.native.bar() // never unbarred
	}
	s.err = err
	if last {
		s.pending--
		s.native.unbar()
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
	return s.do(s.dev.op("copy %d bytes", n), func() (step, error) {
		return step{run: func() error {
			ok := C.memory_copy(C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n))
			return s.dev.accessed(ok, "copy %d bytes from %#x to %#x", n, src, dst)
		}}, nil
	})
}

func (s *stream) Fill(dst uint64, value byte, n uint64) error {
	return s.do(s.dev.op("fill %d bytes", n), func() (step, error) {
		return step{run: func() error {
			ok := C.memory_fill(C.uint64_t(dst), C.int(value), C.uint64_t(n))
			return s.dev.accessed(ok, "fill %d bytes at %#x", n, dst)
		}}, nil
	})
}

func (s *stream) WriteValue64(dst, value uint64) error {
	return s.do(s.dev.op("write a value"), func() (step, error) {
		return step{run: func() error {
			ok := C.memory_write64(C.uint64_t(dst), C.uint64_t(value))
			return s.dev.accessed(ok, "write a value to %#x", dst)
		}}, nil
	})
}

func (s *stream) WaitValue64(src, value uint64, equal bool) error {
	op := "wait for a value"
	return s.do(s.dev.op("%s", op), func() (step, error) {
		return step{run: func() error {
			pause := time.Microsecond
			for {
				reached := C.memory_wait64(C.uint64_t(src), C.uint64_t(value), C.bool(equal))
				if reached != C.MEMORY_NOT_YET {
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.capturing("query a stream"); err != nil {
		return false, err
	}
	s.native.settle()
	return s.pending == 0, s.err
}

// capturing returns an error if the stream captures. The caller holds mu.
func (s *stream) capturing(what string) error {
	if s.capture == nil {
		return nil
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
	if err := s.capturing("synchronize a stream"); err != nil {
		return nil, err
	}
	m := newMark()
	switch {
	case s.pending == 0:
		s.native.settle()
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

func (s *stream) Handle() uintptr { return 0 }

// Close does not wait for queued work, which still runs.
func (s *stream) Close() error { return nil }
