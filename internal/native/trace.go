package native

/*
#cgo noescape native_trace_add
#cgo nocallback native_trace_add
#cgo nocallback native_trace_now
#include "native/trace.h"
*/
import "C"

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"
)

// EventKind says what an [Event] is of.
type EventKind uint8

// The kinds of events. Channel and Peer are as in a handle's Watch; Note of a wait is
// its devicecode.WaitResult.
const (
	EventSignal       EventKind = C.NATIVE_TRACE_SIGNAL        // Value is its number
	EventWait         EventKind = C.NATIVE_TRACE_WAIT          // for the signal of number Value
	EventPortSignal   EventKind = C.NATIVE_TRACE_PORT_SIGNAL   // by a kernel: Value is its number, Bytes the host's signals before, Extra its number among the kernels'
	EventPortWait     EventKind = C.NATIVE_TRACE_PORT_WAIT     // for the signal of number Value; Bytes signals of the host and Extra of kernels had come
	EventPut          EventKind = C.NATIVE_TRACE_PUT           // of Bytes, to offset Extra
	EventGet          EventKind = C.NATIVE_TRACE_GET           // of Bytes, from offset Extra
	EventPutPackets   EventKind = C.NATIVE_TRACE_PUT_PACKETS   // of Bytes of data, to offset Extra; Value is the flag
	EventWaitPackets  EventKind = C.NATIVE_TRACE_WAIT_PACKETS  // likewise, from offset Extra
	EventPush         EventKind = C.NATIVE_TRACE_PUSH          // of a trigger of kind Note, at position Value of the ring with entries at Extra; Channel is its detail, Bytes its c
	EventAwaitFlush   EventKind = C.NATIVE_TRACE_AWAIT_FLUSH   // of the trigger at position Value of ring Extra
	EventAwaitTrigger EventKind = C.NATIVE_TRACE_AWAIT_TRIGGER // likewise, until it was served
	EventBarrier      EventKind = C.NATIVE_TRACE_BARRIER       // number Value of the block
	EventRoundSignal  EventKind = C.NATIVE_TRACE_ROUND_SIGNAL  // of Bytes rounds, up to number Value, of block Extra
	EventRoundWait    EventKind = C.NATIVE_TRACE_ROUND_WAIT    // for round Value of block Extra; Peer may be NoPeer for all
	EventPackets      EventKind = C.NATIVE_TRACE_PACKETS       // the block's part of call Value by packets
	EventLaunchBegin  EventKind = C.NATIVE_TRACE_LAUNCH_BEGIN  // Value is the launch's site
	EventLaunchEnd    EventKind = C.NATIVE_TRACE_LAUNCH_END    // likewise
	EventClock        EventKind = C.NATIVE_TRACE_CLOCK         // the device's clock alone
	EventServe        EventKind = C.NATIVE_TRACE_SERVE         // of the trigger of kind Note at position Value of ring Extra, from when the proxy found it; Bytes of a put, get or store
	EventHostSignal   EventKind = C.NATIVE_TRACE_HOST_SIGNAL   // Value is its number among the host's, Bytes 1 + the position of its trigger or 0, Extra the ring
	EventWrite        EventKind = C.NATIVE_TRACE_WRITE         // of Bytes, queued; Note is the number of the transport's bit
	EventAtomic       EventKind = C.NATIVE_TRACE_ATOMIC        // likewise: a word that was set to Value, or changed by it
	EventFlush        EventKind = C.NATIVE_TRACE_FLUSH         // from its mark until that was reached
	EventRead         EventKind = C.NATIVE_TRACE_READ          // of Bytes, queued; Note as for a write
)

// NoPeer is the Peer of an event that concerns all ranks or none.
const NoPeer = 1<<32 - 1

// Event is what happened in a span of time: the native_event.
type Event struct {
	Number     uint64 // 1 + how many of the ring were before
	What       uint64 // see Kind, Note and Block
	Start, End uint64 // nanoseconds of the device's clock or the host's
	Where      uint64 // see Channel and Peer
	Value      uint64
	Bytes      uint64
	Extra      uint64
}

var _ [C.sizeof_native_event]byte = [unsafe.Sizeof(Event{})]byte{}

// EventBytes is the size of an event.
const EventBytes = C.sizeof_native_event

// Kind returns what the event is of.
func (e *Event) Kind() EventKind { return EventKind(e.What) }

// Note returns the wait's result, the trigger's kind or the transport.
func (e *Event) Note() uint8 { return uint8(e.What >> 8) }

// Block returns the block of the kernel.
func (e *Event) Block() int { return int(e.What >> 32) }

// Channel returns the channel's number on this rank.
func (e *Event) Channel() uint32 { return uint32(e.Where >> 32) }

// Peer returns the other rank.
func (e *Event) Peer() uint32 { return uint32(e.Where) }

// WhatOf returns the What of an event of the host.
func WhatOf(kind EventKind, note uint8) uint64 { return uint64(kind) | uint64(note)<<8 }

// WhereOf returns the Where of an event.
func WhereOf(channel uint32, peer int) uint64 { return uint64(channel)<<32 | uint64(uint32(peer)) }

// Now returns the time of the host's clock (CLOCK_MONOTONIC) in nanoseconds.
func Now() uint64 { return uint64(C.native_trace_now()) }

// Trace is a ring of events of the host. Any thread, in Go or in C, adds to it.
type Trace struct {
	c      *C.native_trace
	events []Event
}

// NewTrace returns a ring for a number of events, a power of two.
func NewTrace(size int) *Trace {
	const head = TraceHead
	var _ [head - C.sizeof_native_trace - 8]byte // where the count is
	memory := allocate(head + uintptr(size)*EventBytes)
	t := &Trace{c: (*C.native_trace)(memory)}
	first := unsafe.Add(memory, head)
	t.c.events, t.c.size = (*C.native_event)(first), C.uint64_t(size)
	t.c.count = (*C.uint64_t)(unsafe.Add(memory, head-8))
	t.events = unsafe.Slice((*Event)(first), size)
	free(t, memory)
	return t
}

// Add adds an event, in place of the oldest if the ring is full. It sets the number. It
// does nothing on nil.
func (t *Trace) Add(e Event) {
	if t != nil {
		C.native_trace_add(t.c, (*C.native_event)(unsafe.Pointer(&e)))
	}
}

// Pointer returns the native_trace, or nil.
func (t *Trace) Pointer() unsafe.Pointer {
	if t == nil {
		return nil
	}
	return unsafe.Pointer(t.c)
}

// Events returns the events that the ring holds, and how many it does not hold any more.
func (t *Trace) Events() (events []Event, dropped uint64) { return EventsOf(t.events) }

// EventsOf returns a copy of the events of a ring in their order, and how many there were
// that it does not hold. Others may add to the ring; an event that changes meanwhile
// counts as dropped.
func EventsOf(ring []Event) (events []Event, dropped uint64) {
	var newest uint64
	for i := range ring {
		number := atomic.LoadUint64(&ring[i].Number)
		e := ring[i]
		if number == 0 || atomic.LoadUint64(&ring[i].Number) != number || e.What == 0 {
			continue
		}
		e.Number = number
		newest = max(newest, number)
		events = append(events, e)
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.Number, b.Number) })
	return events, newest - uint64(len(events))
}

// TraceHeader is the state of a ring in memory that kernels reach: the TraceRing of
// <mscclgo/trace.cuh>.
type TraceHeader struct {
	Events   uint64 // the address of the first
	Count    uint64 // the address of the number of events so far, in device memory
	Size     uint64 // a power of two
	Reserved uint64
}

// TraceHead is the room for a TraceHeader before the events.
const TraceHead = 64

// LaunchSite is what launches have in common.
type LaunchSite struct {
	Kernel      string
	Stream      int // number of the stream among the device's streams that launched, from 1
	Grid, Block [3]uint32
	Captured    bool // in a graph
}

// Clock is what a device's clock showed at a time of the host's, in nanoseconds, and by how
// much that may be wrong.
type Clock struct{ Host, Device, Error uint64 }
