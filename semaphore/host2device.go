package semaphore

import (
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Host2DeviceBytes is the device memory of one end, aligned to its size. What the
// peer writes has a 32-byte sector of its own; the counts of this rank's kernels
// follow.
const Host2DeviceBytes = 64

// Where the words of an end lie in its memory.
const (
	fromHost    = 0  // signals by the peer's host
	fromKernels = 8  // signals that the peer's kernels have counted themselves
	portState   = 32 // a layout.PortState, used by this rank only
)

var _ [Host2DeviceBytes - portState]byte = [unsafe.Sizeof(layout.PortState{})]byte{}

// Host2Device is one end of a semaphore that a host signals and kernels wait for.
// A signal follows what the host's connection wrote before it.
type Host2Device struct {
	conn       *connection.Connection
	words      *gpu.Buffer
	peer       *registeredmem.Memory
	peerOffset uint64
	watch      devicecode.Watch

	sent *native.Count // claimed in the connection's turn, and by threads in C
}

// NewHost2Device makes an end that signals over a connection. words is its own
// memory, [Host2DeviceBytes] aligned to as many; the peer's is as large and lies
// at an offset of peer, memory of the rank that the connection leads to. It
// zeroes its own, so both ends must be made before either is used. All stays the
// caller's and must outlive the semaphore; watch bounds the waits of kernels, and has a
// status and a time-out.
//
// Errors: ErrInvalid for nil arguments, memory of another size or alignment, memory of
// another rank or registry than the connection's, a range outside the peer's memory,
// and a watch that would not end waits.
func NewHost2Device(conn *connection.Connection, words *gpu.Buffer, peer *registeredmem.Memory, peerOffset uint64, watch devicecode.Watch) (*Host2Device, error) {
	const op = "semaphore: make a Host2Device"
	if err := checkWords(op, words, Host2DeviceBytes); err != nil {
		return nil, err
	}
	if err := checkPeer(op, conn, peer, peerOffset, Host2DeviceBytes); err != nil {
		return nil, err
	}
	if err := checkWatch(op, watch); err != nil {
		return nil, err
	}
	if err := gpu.CopyIn(words, make([]byte, Host2DeviceBytes)); err != nil {
		return nil, err
	}
	return &Host2Device{conn: conn, words: words, peer: peer, peerOffset: peerOffset, watch: watch, sent: native.NewCount()}, nil
}

// Signal ends one wait of the peer's kernels, after everything that the connection
// has queued before. It waits only where the transport's queue is full. Any goroutine
// may call it.
//
// Errors: as for the connection's UpdateAndSync.
func (s *Host2Device) Signal() error {
	trace := s.peer.Registry().Internal().Trace()
	var start uint64
	if trace != nil {
		start = native.Now()
	}
	t := s.conn.Internal().Turn()
	defer t.End()
	number, err := s.signalIn(t)
	if err != nil || trace == nil {
		return err
	}
	trace.Add(native.Event{
		What: native.WhatOf(native.EventHostSignal, 0), Start: start, End: native.Now(),
		Where: native.WhereOf(s.watch.Channel, int(s.watch.Peer)), Value: number,
	})
	return nil
}

// turn is the right to queue on a connection.
type turn = inside.Turn[connection.Operation, connection.Mark]

// signalIn is Signal for a goroutine that has the turn of the semaphore's connection. It returns the signal's
// number.
func (s *Host2Device) signalIn(t turn) (number uint64, err error) {
	sent := s.sent.Claim()
	if err := t.Do(connection.Operation{Kind: connection.Update, Theirs: s.peer, Offset: s.peerOffset + fromHost, From: sent, To: sent + 1}); err != nil {
		s.sent.Release(sent)
		return 0, err
	}
	s.sent.Release(sent + 1)
	return sent + 1, nil
}

// Internal is for packages of this module.
func (s *Host2Device) Internal() inside.Semaphore[turn] {
	return inside.Semaphore[turn]{
		Signal: s.signalIn,
		Sent:   s.sent, Peer: s.peer.Internal().Range(), Offset: s.peerOffset + fromHost,
		Channel: s.watch.Channel, Rank: s.watch.Peer, State: uint64(s.state()), PeerSent: uint64(s.peerSent()),
	}
}

// Connection returns the connection that carries the signals.
func (s *Host2Device) Connection() *connection.Connection { return s.conn }

// Peer returns the rank that is signaled.
func (s *Host2Device) Peer() int { return s.peer.Rank() }

// Handle returns what kernels use.
func (s *Host2Device) Handle() devicecode.Host2DeviceSemaphore {
	return layout.Handle[devicecode.Host2DeviceSemaphore](layout.Host2DeviceSemaphore{
		Inbound:  s.words.Ptr() + fromHost,
		Expected: s.state() + gpu.Ptr(unsafe.Offsetof(layout.PortState{}.Expected)),
		Watch:    layout.Watch(s.watch),
	})
}

// state returns the address of the layout.PortState in the end's memory.
func (s *Host2Device) state() gpu.Ptr { return s.words.Ptr() + portState }

// peerSent returns the address of the peer's word for the signals that this rank's
// kernels count themselves, or 0 if the peer's memory is not mapped here, or not over a
// link with the atomics by which several threads may count.
func (s *Host2Device) peerSent() gpu.Ptr {
	if b := s.peer.Buffer(); b != nil && s.peer.CanUpdate() {
		return b.Ptr() + gpu.Ptr(s.peerOffset+fromKernels)
	}
	return 0
}
