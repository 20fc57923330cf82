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
	device.PrepareAtomics()
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
func (d *driver) Ready(o connection.Operations, _ uint64) bool {
	return o != connection.Writes || d.words == nil || d.words.ready()
}

// Write queues a copy on the stream.
func (d *driver) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	return d.stream.Copy(dst.Buffer(), dstOffset, src.Buffer(), srcOffset, n)
}

// Read queues a copy on the stream, which this rank's device makes.
func (d *driver) Read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	return d.Write(dst, dstOffset, src, srcOffset, n)
}

// Update queues the store of a value on the stream, which the stream makes
// visible at system scope after all its copies (cuStreamWriteValue64 without
// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER).
func (d *driver) Update(dst *registeredmem.Memory, dstOffset uint64, _, to uint64) error {
	if d.words != nil {
		return d.words.write(dst.Buffer(), dstOffset, to)
	}
	return d.stream.WriteValue64(dst.Buffer(), dstOffset, to)
}

// Store queues the store of a value on the stream, as Update does.
func (d *driver) Store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	return d.Update(dst, dstOffset, 0, value)
}

// Add queues the addition on the stream, unless it would not be atomic.
func (d *driver) Add(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	if err := canUpdate(dst); err != nil {
		return err
	}
	return d.stream.Add64(dst.Buffer(), dstOffset, value)
}

// Exchange queues the exchange on the stream, unless it would not be atomic.
func (d *driver) Exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	if err := canUpdate(theirs); err != nil {
		return err
	}
	return d.stream.Exchange64(theirs.Buffer(), offset, value, own.Buffer(), ownOffset)
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
