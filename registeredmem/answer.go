package registeredmem

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// request asks a registry's server for a memory.
type request struct {
	instance uint64
	id       uint32
}

const requestVersion = 1

func (q request) encode() []byte {
	w := wire.NewWriter(16)
	w.U8(requestVersion)
	w.U64(q.instance)
	w.U32(q.id)
	return w.Bytes()
}

func decodeRequest(b []byte) (request, error) {
	r := wire.NewReader(b)
	if v := r.U8(); r.Err() == nil && v != requestVersion {
		r.Fail(fmt.Errorf("a request of version %d, this build reads version %d", v, requestVersion))
	}
	q := request{instance: r.U64(), id: r.U32()}
	return q, r.End()
}

// means is how a memory is passed.
type means uint8

const (
	byDescriptor means = iota + 1
	byIPCHandle
	byPointer
	refused
)

const maxReason = 1024

// answer is the answer of a registry's server.
type answer struct {
	means means

	// The memory is size bytes at offset of the allocation with that number
	// among the registry's, which has capacity bytes. Not for byPointer.
	allocation             uint64
	capacity, offset, size uint64

	handle [64]byte // byIPCHandle

	kind   mscclgo.Kind // refused: ErrUnsupported or ErrRemote
	reason string       // refused
}

func (a answer) encode() []byte {
	w := wire.NewWriter(128)
	w.U8(uint8(a.means))
	switch a.means {
	case byDescriptor, byIPCHandle:
		w.U64(a.allocation)
		w.U64(a.capacity)
		w.U64(a.offset)
		w.U64(a.size)
		if a.means == byIPCHandle {
			w.Raw(a.handle[:])
		}
	case refused:
		w.Bool(a.kind == mscclgo.ErrUnsupported)
		w.String(a.reason[:min(len(a.reason), maxReason)])
	}
	return w.Bytes()
}

func decodeAnswer(b []byte) (answer, error) {
	r := wire.NewReader(b)
	a := answer{means: means(r.U8())}
	switch a.means {
	case byDescriptor, byIPCHandle:
		a.allocation, a.capacity, a.offset, a.size = r.U64(), r.U64(), r.U64(), r.U64()
		if a.means == byIPCHandle {
			copy(a.handle[:], r.Raw(len(a.handle)))
		}
		if a.capacity > math.MaxInt64 || a.offset > a.capacity || a.size > a.capacity-a.offset {
			r.Fail(errors.New("the memory does not lie in its allocation"))
		}
	case byPointer:
	case refused:
		a.kind = mscclgo.ErrRemote
		if r.Bool() {
			a.kind = mscclgo.ErrUnsupported
		}
		a.reason = r.String(maxReason)
	default:
		r.Fail(fmt.Errorf("an answer of unknown kind %d", a.means))
	}
	return a, r.End()
}
