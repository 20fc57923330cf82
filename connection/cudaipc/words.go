package cudaipc

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
)

// ringWords is the number of updates that may wait in the stream's queue; a power of
// two. The CUDA driver's own queue takes about a thousand copies, and then blocks the
// caller without a timeout.
const ringWords = 256

// wordRing updates words on devices whose streams have no 64-bit writes: by a copy
// of 8 aligned bytes from pinned memory, which is not torn and follows the copies
// queued before it. Each value stays in a slot of its own until its copy is done.
// The slots of a half of the ring are free again once the event at its end is
// reached. The methods are called by one goroutine at a time.
type wordRing struct {
	stream  *gpu.Stream
	timeout time.Duration
	slots   *gpu.Buffer
	halves  [2]*gpu.Event
	next    int
}

func newWordRing(d *gpu.Device, stream *gpu.Stream, timeout time.Duration) (*wordRing, error) {
	w := &wordRing{stream: stream, timeout: timeout}
	var err error
	if w.slots, err = d.AllocHost(8 * ringWords); err != nil {
		return nil, err
	}
	for i := range w.halves {
		if w.halves[i], err = d.NewEvent(); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	return w, nil
}

// write queues the update of a word. If the ring is full it waits for half of it, for
// the ring's timeout at most.
func (w *wordRing) write(dst *gpu.Buffer, offset, value uint64) error {
	const half = ringWords / 2
	if w.next%half == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
		defer cancel()
		if err := w.halves[w.next/half].Synchronize(ctx); err != nil {
			return err
		}
	}
	at := uint64(w.next) * 8
	binary.NativeEndian.PutUint64(w.slots.Bytes()[at:], value)
	if err := w.stream.Copy(dst, offset, w.slots, at, 8); err != nil {
		return err
	}
	last := w.next
	w.next = (w.next + 1) % ringWords
	if w.next%half == 0 {
		return w.stream.Record(w.halves[last/half])
	}
	return nil
}

// ready reports whether write would not wait.
func (w *wordRing) ready() bool {
	const half = ringWords / 2
	if w.next%half != 0 {
		return true
	}
	free, err := w.halves[w.next/half].Query()
	return free || err != nil
}

func (w *wordRing) close() error {
	var errs []error
	for _, e := range w.halves {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(append(errs, w.slots.Close())...)
}
