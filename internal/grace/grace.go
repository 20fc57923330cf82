// Package grace gives news time to come: what another goroutine of this process brings, and what
// others said while this process did not run.
package grace

import "time"

// parts is how many waits one of Wait is made of.
const parts = 10

// Wait waits for d, and reports whether neither channel was closed meanwhile; nil is one that never
// is. It waits in several parts: where this process gets little CPU, each takes longer, and what closes
// the channel comes to run before the last has ended.
func Wait(d time.Duration, one, other <-chan struct{}) bool {
	for range parts {
		select {
		case <-one:
			return false
		case <-other:
			return false
		case <-time.After(d / parts):
		}
	}
	return true
}
