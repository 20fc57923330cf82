package gpu

import (
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/internal/native"
)

// lifetime is that of memory or a module.
type lifetime struct {
	closed atomic.Bool

	mu   sync.Mutex
	gate *native.Gate // nil before it is first asked for
}

// over says whether it has ended.
func (l *lifetime) over() bool { return l.closed.Load() }

// end ends it, and says whether this was the first call. When it returns, no
// thread in C is inside the gate.
func (l *lifetime) end() bool {
	first := !l.closed.Swap(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate != nil {
		l.gate.Close()
	}
	return first
}

// door gives the gate, which closes at the end.
func (l *lifetime) door() *native.Gate {
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
