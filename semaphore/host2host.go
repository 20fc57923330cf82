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

// Host2Host is one end of a semaphore between two hosts: signals follow what the
// connection wrote before, and goroutines wait for them.
type Host2Host struct {
	conn       *connection.Connection
	word       *gpu.Buffer
	peer       *registeredmem.Memory
	peerOffset uint64

	sending sync.Mutex
	sent    uint64

	waiting chan struct{} // holds one token: who has it counts
	waited  uint64
}

// NewHost2Host makes an end. word is its own memory, [Host2HostBytes]: pinned
// host memory where the connection's transport reaches that, else device memory,
// of which each look costs a copy of 8 bytes. The peer's word lies at an offset
// of peer. It zeroes its own, so both ends must be made before either is used.
// All stays the caller's and must outlive the semaphore.
//
// Errors: ErrInvalid for memory of another size or alignment, or a range outside
// the peer's.
func NewHost2Host(conn *connection.Connection, word *gpu.Buffer, peer *registeredmem.Memory, peerOffset uint64) (*Host2Host, error) {
	const op = "semaphore: make a Host2Host"
	if word.Size() != Host2HostBytes || word.Ptr()%Host2HostBytes != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d bytes at %#x given, an end has %d aligned to as many", word.Size(), uint64(word.Ptr()), Host2HostBytes)
	}
	if err := checkPeer(op, peer, peerOffset, Host2HostBytes); err != nil {
		return nil, err
	}
	if err := gpu.CopyIn(word, []uint64{0}); err != nil {
		return nil, err
	}
	s := &Host2Host{conn: conn, word: word, peer: peer, peerOffset: peerOffset, waiting: make(chan struct{}, 1)}
	s.waiting <- struct{}{}
	return s, nil
}

// Signal lets one Wait of the peer go on, once all that the connection was given
// before is done there. It does not wait. Any goroutine.
//
// Errors: those of the connection's UpdateAndSync.
func (s *Host2Host) Signal() error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.conn.UpdateAndSync(s.peer, s.peerOffset, s.sent, s.sent+1); err != nil {
		return err
	}
	s.sent++
	return nil
}

// The pauses between looks of Wait, after some without.
const (
	eagerLooks    = 1000
	shortestPause = time.Microsecond
	longestPause  = 200 * time.Microsecond
)

// Wait waits for one more signal; what the peer's connection wrote before it is
// there then. Any goroutine; each signal ends one Wait.
//
// Errors: ErrTimeout and ErrAborted when ctx ends first, and then nothing was
// consumed; ErrSystem when the word cannot be read.
func (s *Host2Host) Wait(ctx context.Context) error {
	const op = "semaphore: wait"
	select {
	case <-s.waiting:
		defer func() { s.waiting <- struct{}{} }()
	case <-ctx.Done():
		return mscclgo.FromContext(ctx, op, "another Wait was before this one").At(s.peer.Registry().Rank(), s.peer.Rank())
	}
	pause := shortestPause
	for looks := 0; ; looks++ {
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
		if looks < eagerLooks {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// Poll consumes one signal if one is there, like Wait, and does not wait.
//
// Errors: ErrSystem when the word cannot be read.
func (s *Host2Host) Poll() (bool, error) {
	select {
	case <-s.waiting:
		defer func() { s.waiting <- struct{}{} }()
	default:
		return false, nil // who waits comes first
	}
	arrived, err := s.arrived()
	if err != nil || arrived <= s.waited {
		return false, err
	}
	s.waited++
	return true, nil
}

// arrived gives how many signals have come.
func (s *Host2Host) arrived() (uint64, error) {
	if host := s.word.Bytes(); host != nil {
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(unsafe.SliceData(host)))), nil
	}
	var value [1]uint64
	err := gpu.CopyOut(value[:], s.word)
	return value[0], err
}
