package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// Of memory that the host can access, the host changes words. What it does is atomic for all
// transports and connections then, since none has a device do so there. In other memory the
// device does, by kernels at system scope.

// change does an addition or an exchange in memory that the host can access.
func (r *receiver) change(e *entry, host []byte) {
	word := (*uint64)(unsafe.Pointer(&host[e.Offset]))
	if e.Kind == message.Add {
		atomic.AddUint64(word, e.Total)
		return
	}
	binary.NativeEndian.PutUint64(r.ring.data[e.place:], atomic.SwapUint64(word, e.Total))
}

// settle waits until the stream has done what was queued, as it may have stores to do where the
// host is to change a word.
func (r *receiver) settle() error {
	err := r.end()
	for err == nil && r.begun.Load() != r.ended {
		oldest := r.batches[r.ended%batchesAhead].event
		if err = oldest.Synchronize(r.Drain); err == nil {
			err = r.reap()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDevice, err)
	}
	return nil
}
