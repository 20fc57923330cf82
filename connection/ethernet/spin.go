package ethernet

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Who waits for a message spins a while before it sleeps, since to be woken costs
// more than a message takes; but only where cores are plentiful, and no more of a
// transport's goroutines at a time than there are cores to spare.
const (
	spinTime     = 250 * time.Microsecond // some round trips between two GPUs
	spinCores    = 8                      // fewer are not plenty
	spinShare    = 4                      // one core in so many may be spun on
	spinsAtATime = 16                     // between looks at the clock
)

// spinner lets goroutines spin while there is room for them.
type spinner struct{ room atomic.Int32 }

// allow sets how many may spin at a time here.
func (s *spinner) allow() {
	if cores := runtime.GOMAXPROCS(0); cores >= spinCores {
		s.room.Store(int32(cores / spinShare))
	}
}

// until polls until done, for spinTime at most. It says whether it is done, false
// at once where there is no room. It does not yield: the goroutine that would run
// meanwhile has other cores, and coming back would take longer than the message.
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
