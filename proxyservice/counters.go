package proxyservice

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/registeredmem"
)

// counters are what a proxy counts: the proxy_counters of counters.h. C writes, any
// goroutine reads.
type counters struct {
	triggers [256]atomic.Uint64 // by kind
	bytes    [8]atomic.Uint64   // by the number of the transport's bit
	flushes  [flushBuckets + 1]atomic.Uint64
	flushing atomic.Uint64 // nanoseconds of all flushes
	idle     atomic.Uint64 // nanoseconds
}

// The buckets of flush times end at 1, 2, 4, ... microseconds. The one behind the
// last has no end.
const flushBuckets = 22

// Snapshot is what a proxy has done so far.
type Snapshot struct {
	Waiting  int                                 // triggers in the ring now
	RingSize int                                 // triggers that the ring holds
	Deferred int                                 // triggers taken from it for which their peers have no room
	Triggers map[uint8]uint64                    // served, by kind
	Bytes    map[registeredmem.Transports]uint64 // put, got, stored, added and exchanged, by transport
	Flushes  FlushTimes
	Failures uint64        // 1 once the proxy has failed
	Idle     time.Duration // without work
}

// FlushTimes is a histogram of how long flushes took from their trigger to their
// end.
type FlushTimes struct {
	Count   uint64
	Sum     time.Duration
	Buckets []FlushBucket // of growing limits; flushes beyond the last are in Count alone
}

// FlushBucket counts the flushes that took no longer than a limit.
type FlushBucket struct {
	Limit time.Duration
	Count uint64 // of all up to the limit
}

// Snapshot returns what the proxy has done, as far as it counts. Each number is read
// at its own moment. Any goroutine.
func (p *Proxy) Snapshot() Snapshot {
	defer runtime.KeepAlive(p) // the counts lie in C, and go with it
	c := (*counters)(unsafe.Pointer(&p.loop.c.counted))
	s := Snapshot{
		Waiting:  p.ring.Len(),
		RingSize: p.ring.Size(),
		Deferred: int(p.waiting.Load()),
		Triggers: map[uint8]uint64{},
		Bytes:    map[registeredmem.Transports]uint64{},
		Flushes:  FlushTimes{Sum: time.Duration(c.flushing.Load())},
		Idle:     time.Duration(c.idle.Load()),
	}
	if p.failure.Load() != nil {
		s.Failures = 1
	}
	for kind := range c.triggers {
		if n := c.triggers[kind].Load(); n != 0 {
			s.Triggers[uint8(kind)] = n
		}
	}
	for bit := range c.bytes {
		if n := c.bytes[bit].Load(); n != 0 {
			s.Bytes[1<<bit] = n
		}
	}
	for i := range c.flushes {
		s.Flushes.Count += c.flushes[i].Load()
		if i < flushBuckets {
			s.Flushes.Buckets = append(s.Flushes.Buckets, FlushBucket{Limit: time.Microsecond << i, Count: s.Flushes.Count})
		}
	}
	return s
}
