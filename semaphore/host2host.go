package semaphore

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Host2HostBytes is the memory of one end, aligned to its size.
const Host2HostBytes = 8

// Host2Host is one end of a semaphore between two hosts. Goroutines wait for its
// signals, which follow what the connection wrote before them.
type Host2Host struct {
	conn       *connection.Connection
	word       *gpu.Buffer
	peer       *registeredmem.Memory
	peerOffset uint64

	sending sync.Mutex
	sent    uint64

	waiting chan struct{} // holds one token, without which waited must not be used
	waited  uint64
}

// NewHost2Host makes an end. word is its own memory, of [Host2HostBytes]: pinned
// host memory if the connection's transport writes to that, else device memory, where
// each poll costs a copy of 8 bytes. The peer's word lies at an offset of peer. It
// zeroes its own, so both ends must be made before either is used. Everything stays
// the caller's and must outlive the semaphore.
//
// Errors: ErrInvalid for nil arguments, memory of another size or alignment, memory of
// another rank or registry than the connection's, and a range outside the peer's
// memory.
func NewHost2Host(conn *connection.Connection, word *gpu.Buffer, peer *registeredmem.Memory, peerOffset uint64) (*Host2Host, error) {
	const op = "semaphore: make a Host2Host"
	if err := checkWords(op, word, Host2HostBytes); err != nil {
		return nil, err
	}
	if err := checkPeer(op, conn, peer, peerOffset, Host2HostBytes); err != nil {
		return nil, err
	}
	if err := gpu.CopyIn(word, []uint64{0}); err != nil {
		return nil, err
	}
	s := &Host2Host{conn: conn, word: word, peer: peer, peerOffset: peerOffset, waiting: make(chan struct{}, 1)}
	s.waiting <- struct{}{}
	return s, nil
}

// Signal ends one Wait of the peer, after everything that the connection has queued
// before. It does not wait. Any goroutine may call it.
//
// Errors: as for the connection's UpdateAndSync.
func (s *Host2Host) Signal() error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.conn.UpdateAndSync(s.peer, s.peerOffset, s.sent, s.sent+1); err != nil {
		return err
	}
	s.sent++
	return nil
}

// Wait polls without pauses at first, and then with growing ones.
const (
	eagerPolls    = 1000
	shortestPause = time.Microsecond
	longestPause  = 200 * time.Microsecond
)

// Wait waits for one more signal. What the peer's connection wrote before the signal
// has arrived then. Any goroutine may call it; each signal ends one Wait.
//
// Errors: ErrTimeout and ErrAborted when ctx ends first, which consumes no signal;
// ErrAborted when the group has failed, with why, if the connection is a communicator's;
// ErrSystem when the word cannot be read.
func (s *Host2Host) Wait(ctx context.Context) error {
	const op = "semaphore: wait"
	failed := s.peer.Registry().Failed()
	select {
	case <-s.waiting:
		defer func() { s.waiting <- struct{}{} }()
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, "another Wait came first").At(s.peer.Registry().Rank(), s.peer.Rank())
	}
	pause := shortestPause
	for polls := 0; ; polls++ {
		arrived, err := s.arrived()
		if err != nil {
			return err
		}
		if arrived > s.waited {
			s.waited++
			return nil
		}
		if ctx.Err() != nil {
			return mscclgo.FromContext(ctx, op, "no signal came").At(s.peer.Registry().Rank(), s.peer.Rank())
		}
		if err := s.aborted(op, failed); err != nil {
			return err
		}
		if polls < eagerPolls {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// Poll consumes one signal if one has arrived, and reports whether it did. It does
// not wait.
//
// Errors: ErrAborted when none has and the group has failed, as of Wait; ErrSystem when the
// word cannot be read.
func (s *Host2Host) Poll() (bool, error) {
	select {
	case <-s.waiting:
		defer func() { s.waiting <- struct{}{} }()
	default:
		return false, nil // a Wait comes first
	}
	arrived, err := s.arrived()
	if err != nil {
		return false, err
	}
	if arrived <= s.waited {
		return false, s.aborted("semaphore: poll", s.peer.Registry().Failed())
	}
	s.waited++
	return true, nil
}

// aborted returns the error of a group that has failed, else nil: the signal may never come.
func (s *Host2Host) aborted(op string, failed <-chan struct{}) error {
	select {
	case <-failed:
		return s.conn.Internal().Explained(mscclgo.Errorf(mscclgo.ErrAborted, op, "the group has failed").At(s.peer.Registry().Rank(), s.peer.Rank()))
	default:
		return nil
	}
}

// arrived returns the number of signals that have arrived.
func (s *Host2Host) arrived() (uint64, error) {
	if host := s.word.Bytes(); host != nil {
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(host)))), nil
	}
	var value [1]uint64
	err := gpu.CopyOut(value[:], s.word)
	return value[0], err
}
