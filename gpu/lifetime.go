package gpu

import (
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/internal/native"
)

// lifetime is the state of memory or of a module that can be closed.
type lifetime struct {
	closed atomic.Bool

	mu   sync.Mutex
	gate *native.Gate // nil until first needed
}

// over reports whether end was called.
func (l *lifetime) over() bool { return l.closed.Load() }

// end ends the lifetime and reports whether this was the first call. When it returns,
// no thread in C is inside the gate.
func (l *lifetime) end() bool {
	first := !l.closed.Swap(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate != nil {
		l.gate.Close()
	}
	return first
}

// nativeGate returns the gate, which is closed when the lifetime ends.
func (l *lifetime) nativeGate() *native.Gate {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate == nil {
		l.gate = native.NewGate()
		if l.over() {
			l.gate.Close()
		}
	}
	return l.gate
}
