// Package spin has goroutines that wait for a message spin a while before they sleep,
// since waking up takes longer than a message. Only some of a transport's goroutines spin
// at a time, and only on machines with many cores.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Time is how long a goroutine spins: some round trips between two GPUs.
const Time = 250 * time.Microsecond

const (
	cores   = 8  // with fewer, nothing spins
	share   = 4  // one core of so many is used for spinning
	atATime = 16 // between looks at the clock
)

// Spinner lets goroutines spin while there is room for them. The zero value has none.
type Spinner struct{ room atomic.Int32 }

// Allow makes as much room as the machine has.
func (s *Spinner) Allow() {
	if n := runtime.GOMAXPROCS(0); n >= cores {
		s.SetRoom(int32(n / share))
	}
}

// SetRoom sets how many goroutines may spin at a time.
func (s *Spinner) SetRoom(n int32) { s.room.Store(n) }

// Room returns how many more goroutines may spin now.
func (s *Spinner) Room() int32 { return s.room.Load() }

// Until polls done for at most Time, and reports whether it was true. Without room it
// reports false at once. It does not yield: other goroutines have other cores, and coming
// back would take longer than the message.
func (s *Spinner) Until(done func() bool) bool {
	defer s.room.Add(1)
	if s.room.Add(-1) < 0 {
		return false
	}
	for start := time.Now(); time.Since(start) < Time; {
		for range atATime {
			if done() {
				return true
			}
		}
	}
	return false
}
