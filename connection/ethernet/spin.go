package ethernet

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A goroutine that waits for a message spins a while before it sleeps, since waking up
// takes longer than a message. Only some of a transport's goroutines spin at a time,
// and only on machines with many cores.
const (
	spinTime     = 250 * time.Microsecond // some round trips between two GPUs
	spinCores    = 8                      // with fewer, nothing spins
	spinShare    = 4                      // one core of so many is used for spinning
	spinsAtATime = 16                     // between looks at the clock
)

// spinner lets goroutines spin while there is room for them.
type spinner struct{ room atomic.Int32 }

// allow sets how many goroutines may spin at a time.
func (s *spinner) allow() {
	if cores := runtime.GOMAXPROCS(0); cores >= spinCores {
		s.room.Store(int32(cores / spinShare))
	}
}

// until polls done for at most spinTime, and reports whether it was true. Without room
// it reports false at once. It does not yield: other goroutines have other cores, and
// coming back would take longer than the message.
func (s *spinner) until(done func() bool) bool {
	defer s.room.Add(1)
	if s.room.Add(-1) < 0 {
		return false
	}
	for start := time.Now(); time.Since(start) < spinTime; {
		for range spinsAtATime {
			if done() {
				return true
			}
		}
	}
	return false
}
