package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/registeredmem"
)

// Of memory that the host can access, the host changes words. What it does is atomic for all
// transports and connections then, since none has a device do so there. In other memory the
// device does, by kernels at system scope.

// Add queues the sending of what is to be added to a word.
func (c *conn) Add(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	return c.enqueue(dst, op{kind: kindAdd, offset: dstOffset, to: value})
}

// ReadyToExchange reports whether the queue has room for an operation.
func (c *conn) ReadyToExchange() bool { return c.ReadyToRead(8) }

// Exchange queues a request that the peer's transport answers with what the word was.
func (c *conn) Exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	into, err := c.place(own, ownOffset, 8, true)
	if err != nil {
		return err
	}
	return c.enqueue(theirs, op{kind: kindExchange, offset: offset, to: value, n: 8, into: into, intoOffset: ownOffset})
}

// change does an addition or an exchange in memory that the host can access.
func (r *receiver) change(e *entry, host []byte) {
	word := (*uint64)(unsafe.Pointer(&host[e.offset]))
	if e.kind == kindAdd {
		atomic.AddUint64(word, e.to)
		return
	}
	binary.NativeEndian.PutUint64(r.ring.data[e.place:], atomic.SwapUint64(word, e.to))
}

// settle waits until the stream has done what was queued, as it may have stores to do where the
// host is to change a word.
func (r *receiver) settle() error {
	err := r.end()
	for err == nil && r.begun.Load() != r.ended {
		oldest := r.batches[r.ended%batchesAhead].event
		if err = oldest.Synchronize(r.drain); err == nil {
			err = r.reap()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDevice, err)
	}
	return nil
}
