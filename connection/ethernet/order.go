package ethernet

import (
	"fmt"
	"sync"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// order makes the receivers of several sockets apply operations one after another.
// The frames of one write may be applied in any order.
type order struct {
	mu      sync.Mutex
	turn    sync.Cond
	sockets int
	next    uint64 // the operation whose frames may be applied
	begun   uint64 // bytes of it that are being applied or are applied
	applied uint64
	total   uint64 // its size, from the first frame
	ended   bool
}

func newOrder(sockets int) *order {
	o := &order{sockets: sockets}
	o.turn.L = &o.mu
	return o
}

// enter waits until a frame's operation is due. It reports false if the connection
// has ended.
func (o *order) enter(f *message.Frame) (bool, error) {
	n, total := f.Length, f.Total
	if f.Kind != message.Data {
		n, total = 1, 1
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.ended && f.Op > o.next {
		if o.sockets == 1 || f.Op-o.next > maxAhead {
			return false, fmt.Errorf("it sent a frame of operation %d, %d is due", f.Op, o.next)
		}
		o.turn.Wait()
	}
	switch {
	case o.ended:
		return false, nil
	case f.Op < o.next:
		return false, fmt.Errorf("it sent a frame of operation %d, which is done", f.Op)
	case o.begun == 0:
		o.total = total
	case o.total != total:
		return false, fmt.Errorf("it sent frames of writes of %d and of %d bytes as one", o.total, total)
	}
	if n > total-o.begun {
		return false, fmt.Errorf("it sent more than the %d bytes of a write", total)
	}
	o.begun += n
	return true, nil
}

// maxAhead bounds how many operations one socket may be ahead of another.
const maxAhead = message.Depth * maxSockets

// leave records that a frame is applied.
func (o *order) leave(f *message.Frame) {
	n := f.Length
	if f.Kind != message.Data {
		n = 1
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.applied += n; o.applied == o.total {
		o.next++
		o.begun, o.applied = 0, 0
		if o.sockets > 1 {
			o.turn.Broadcast()
		}
	}
}

// done returns the number of operations that are applied.
func (o *order) done() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next
}

func (o *order) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.turn.Broadcast()
}
