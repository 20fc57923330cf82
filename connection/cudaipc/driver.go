package cudaipc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// driver is the driver of a connection. It queues everything on a stream.
type driver struct {
	device *gpu.Device
	stream *gpu.Stream
	words  *wordRing // nil if the stream has 64-bit writes

	waits sync.RWMutex // held to read while the stream is waited for, and to write while it is closed
}

// newDriver returns a driver. storeValues is whether the device's streams have 64-bit
// writes. timeout bounds the wait for room in the ring of words.
func newDriver(device *gpu.Device, timeout time.Duration, storeValues bool) (*driver, error) {
	d := &driver{device: device}
	var err error
	// Now, as kernels may run later that wait for atomic operations. These have the error again.
	device.Internal().PrepareAtomics()
	if d.stream, err = device.NewStream(); err != nil || storeValues {
		return d, err
	}
	if d.words, err = newWordRing(device, d.stream, timeout); err != nil {
		return nil, errors.Join(err, d.stream.Close())
	}
	return d, nil
}

// Ready reports whether an update would find room in the ring of words. Of the stream's
// own queue, which this rank's device empties whatever the peer does, it knows nothing.
func (d *driver) Ready(k connection.Kind, _ uint64) bool {
	return k == connection.Read || k == connection.Exchange || d.words == nil || d.words.ready()
}

// Submit queues an operation on the stream. A value is made visible at system scope after all copies
// (cuStreamWriteValue64 without CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER). An atomic operation, and a copy
// from the peer, this rank's device makes.
func (d *driver) Submit(o connection.Operation) error {
	theirs := o.Theirs.Buffer()
	switch o.Kind {
	case connection.Write:
		return d.stream.Copy(theirs, o.Offset, o.Own.Buffer(), o.OwnOffset, o.N)
	case connection.Read:
		return d.stream.Copy(o.Own.Buffer(), o.OwnOffset, theirs, o.Offset, o.N)
	case connection.Add, connection.Exchange:
		if err := canUpdate(o.Theirs); err != nil {
			return err
		}
		if o.Kind == connection.Add {
			return d.stream.Internal().Add64(theirs, o.Offset, o.To)
		}
		return d.stream.Internal().Exchange64(theirs, o.Offset, o.To, o.Own.Buffer(), o.OwnOffset)
	}
	if d.words != nil {
		return d.words.write(theirs, o.Offset, o.To)
	}
	return d.stream.WriteValue64(theirs, o.Offset, o.To)
}

// canUpdate returns an error unless this rank's device makes atomic operations in a memory of
// the peer's.
func canUpdate(m *registeredmem.Memory) error {
	if !m.CanUpdate() {
		return mscclgo.Errorf(mscclgo.ErrUnsupported, "cudaipc: reach a word", "the link between the two devices has no atomic operations; connect the ranks over another transport")
	}
	return nil
}

// NativeQueue returns the stream's queue if the stream has 64-bit writes, else nil.
func (d *driver) NativeQueue() *native.Queue {
	if d.words != nil {
		return nil
	}
	return d.stream.Internal().Queue()
}

// NativeError returns the error of an operation on the stream that failed in C.
func (d *driver) NativeError(f native.Failure) error { return d.stream.Internal().QueueError(f) }

// Quiet waits for the stream, whose copies go on though there may be no event to mark them with.
func (d *driver) Quiet(ctx context.Context) error {
	d.waits.RLock()
	defer d.waits.RUnlock()
	err := d.stream.Synchronize(ctx)
	if errors.Is(err, mscclgo.ErrTimeout) || errors.Is(err, mscclgo.ErrAborted) {
		return err
	}
	return nil // a device that has failed copies nothing
}

// Close releases the stream.
func (d *driver) Close() error {
	d.waits.Lock()
	defer d.waits.Unlock()
	var err error
	if d.words != nil {
		// If the stream is not idle the ring stays, since a copy may still read it.
		if idle, failed := d.stream.Query(); idle || failed != nil {
			err = errors.Join(failed, d.words.close())
		}
	}
	return errors.Join(err, d.stream.Close())
}
