package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

// ErrDevice means that this rank's device could not do what the peer sent or asked for.
var ErrDevice = errors.New("the device could not copy what the peer sent or asked for")

// Applier does operations of a peer on memories of this rank, in the order in which it is given them.
// Of memory that the host can access, the host changes words. What it does is atomic for all
// transports and connections then, since none has a device do so there. In other memory the
// device does, by kernels at system scope.
type Applier struct {
	Stream      *gpu.Stream
	peer        int
	StoreValues bool // the device's streams have 64-bit writes
}

// Prepare makes the stream.
func (a *Applier) Prepare(e *End) (err error) {
	device := e.rank.Registry.Device()
	a.peer, a.StoreValues = e.Peer, device.Info().StreamMemoryOps
	// Now, as kernels may run later that wait for atomic operations. These have the error again.
	device.Internal().PrepareAtomics()
	a.Stream, err = e.NewStream()
	return err
}

// ByHost does an operation in memory that the host can access, where nobody else is to do what was before.
// bytes are what is written, or the place for what is read or what an exchanged word was.
func (a *Applier) ByHost(f *Frame, m *target.Memory, host, bytes []byte) {
	if f.Kind == Data || f.Kind == Read {
		m.Moved(a.peer, f.Offset, f.Length, f.Kind == Data)
	}
	there := host[f.Offset : f.Offset+f.Size()]
	switch f.Kind {
	case Data:
		copy(there, bytes)
	case Read:
		copy(bytes, there)
	case Add:
		atomic.AddUint64((*uint64)(unsafe.Pointer(&there[0])), f.Total)
	case Exchange:
		binary.NativeEndian.PutUint64(bytes, atomic.SwapUint64((*uint64)(unsafe.Pointer(&there[0])), f.Total))
	default:
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&there[0])), f.Total)
	}
}

// ByDevice has the stream do an operation on memory, which the caller holds until that is done. The bytes that
// ByHost has are at a place of pinned memory, and so is the value of an update.
func (a *Applier) ByDevice(f *Frame, m *target.Memory, pinned *gpu.Buffer, place uint64) (err error) {
	switch {
	case f.Kind == Read:
		err = a.Stream.Copy(pinned, place, m.Buffer, f.Offset, f.Length)
	case f.Kind == Add:
		err = a.Stream.Internal().Add64(m.Buffer, f.Offset, f.Total)
	case f.Kind == Exchange:
		err = a.Stream.Internal().Exchange64(m.Buffer, f.Offset, f.Total, pinned, place)
	case f.Kind == Update && a.StoreValues:
		// It makes the value visible at system scope after its copies (cuStreamWriteValue64 without
		// CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER).
		err = a.Stream.WriteValue64(m.Buffer, f.Offset, f.Total)
	default: // a copy of 8 aligned bytes is not torn
		err = a.Stream.Copy(m.Buffer, f.Offset, pinned, place, f.Size())
	}
	if err != nil {
		return m.Failed(fmt.Errorf("%w: %w", ErrDevice, err))
	}
	return nil
}
