package registeredmem

import (
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/fdpass"
)

// serve answers a member of the group that requests one of this rank's memories.
func (r *Registry) serve(body []byte, sameProcess bool) fdpass.Answer {
	q, err := decodeRequest(body)
	if err != nil {
		return refuse(mscclgo.ErrRemote, err.Error())
	}
	if q.instance != r.instance {
		return refuse(mscclgo.ErrRemote, "the memory is of an earlier registry of this rank")
	}
	m := r.Find(q.id)
	if m == nil {
		return refuse(mscclgo.ErrRemote, fmt.Sprintf("memory %d is not registered", q.id))
	}
	buf := m.Buffer()
	if buf == nil || closed(buf) {
		return refuse(mscclgo.ErrRemote, fmt.Sprintf("%v is closed", m))
	}
	if sameProcess {
		return fdpass.Answer{Body: answer{means: byPointer}.encode(), Value: buf}
	}
	a := answer{
		means: byDescriptor, allocation: m.allocation.number,
		capacity: buf.Internal().Capacity(), offset: buf.Internal().AllocationOffset(), size: buf.Size(),
	}
	file, err := buf.Internal().Export()
	if err == nil {
		return fdpass.Answer{Body: a.encode(), File: file}
	}
	// Package gpu did not allocate the memory.
	if errors.Is(err, mscclgo.ErrUnsupported) {
		a.means = byIPCHandle
		a.handle, a.offset, err = buf.Internal().IPCHandle()
		if err == nil {
			return fdpass.Answer{Body: a.encode()}
		}
	}
	kind := mscclgo.ErrRemote
	if errors.Is(err, mscclgo.ErrUnsupported) {
		kind = mscclgo.ErrUnsupported
	}
	return refuse(kind, err.Error())
}

func refuse(kind mscclgo.Kind, reason string) fdpass.Answer {
	return fdpass.Answer{Body: answer{means: refused, kind: kind, reason: reason}.encode()}
}
