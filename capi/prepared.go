package main

// #include "process.h"
import "C"

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// peerMemory is what the handle of peer memory stands for.
type peerMemory struct {
	group  *object
	buffer *gpu.Buffer
	peers  *communicator.PeerMemory

	mu     sync.Mutex
	shared *collective.Memory // for prepared calls; the first one makes it
	left   bool               // shared is of a group before
}

// collective returns the memory for prepared calls. All ranks call it for the same memories in
// the same order, since the first call for each is collective, also in the group that follows.
func (m *peerMemory) collective(ctx context.Context, r *collective.Runner) (*collective.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.shared == nil:
		shared, err := r.Share(ctx, m.buffer)
		if err != nil {
			return nil, err
		}
		m.shared = shared
	case m.left:
		if _, err := m.shared.Reform(ctx); err != nil {
			return nil, err
		}
		m.left = false
	}
	return m.shared, nil
}

// leave has the next group take over what is for prepared calls.
func (m *peerMemory) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = m.shared != nil
}

// close unmaps the peers' buffers. Where the group goes too, its runner closes what is for
// prepared calls, of all memories at once.
func (m *peerMemory) close() error {
	var err error
	if objects.has(m.group) {
		ctx, cancel := context.WithTimeout(context.Background(), partingTime)
		defer cancel()
		err = m.shared.Close(ctx)
	}
	return errors.Join(err, m.peers.Close())
}

// prepared is what the handle of a prepared call stands for.
type prepared struct {
	operation *collective.Operation
	memories  [2]part // which the call has
}

// part is peer memory from an offset on. Its memory is 0 where a call has none.
type part struct {
	memory C.uintptr_t
	offset uint64
}

// partingTime is how long a rank that destroys something waits for the others to do so too.
const partingTime = 5 * time.Second

//export capi_peer_memory_create
func capi_peer_memory_create(handle, buffer C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	const op = "share a buffer"
	return withGroup(op, handle, func(group *object, g *group) error {
		return of(op, aBuffer, buffer, func(_ *object, b *gpu.Buffer) error {
			if err := isNull(op, unsafe.Pointer(result)); err != nil {
				return err
			}
			peers, err := g.comm.Share(context.Background(), b)
			if err != nil {
				return err
			}
			m := &peerMemory{group: group, buffer: b, peers: peers}
			objects.add(group, aPeerMemory, m, m.close).store(result)
			return nil
		})
	})
}

//export capi_peer_memory_get_handle
func capi_peer_memory_get_handle(handle C.uintptr_t, result *C.mscclgo_peer_memory_handle) C.mscclgo_status {
	return storeHandle("get the handle of peers' memory", aPeerMemory, handle, result, func(m *peerMemory) (devicecode.PeerMemory, error) { return m.peers.Handle() })
}

//export capi_peer_memory_destroy
func capi_peer_memory_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy peer memory", aPeerMemory, handle) })
}

//export capi_prepare
func capi_prepare(handle C.uintptr_t, c *C.mscclgo_call, result *C.uintptr_t) C.mscclgo_status {
	const op = "prepare a collective"
	return withGroup(op, handle, func(group *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(c), unsafe.Pointer(result)); err != nil {
			return err
		}
		if c.collective > 255 || c._type > 255 || c.operation > 255 {
			return invalid(op, "there is no collective %d, or no type %d, or no operation %d", int(c.collective), int(c._type), int(c.operation))
		}
		want := collective.Call{
			Kind: collective.Kind(c.collective), Type: collective.Type(c._type), Op: collective.Op(c.operation),
			Root: int(c.root), Count: uint64(c.count), Overlap: c.overlap != 0,
		}
		out := part{*(*C.uintptr_t)(unsafe.Pointer(&c.out)), uint64(c.out_offset)}
		in := part{*(*C.uintptr_t)(unsafe.Pointer(&c.in)), uint64(c.in_offset)}
		want.InPlace = in.memory == 0
		r, err := g.collectives()
		if err != nil {
			return err
		}
		p := &prepared{}
		var wrong error
		if want.Count > 0 {
			p.memories = [2]part{out, in}
			want.Out, wrong = out.of(op, group, r)
			if wrong == nil && !want.InPlace {
				want.In, wrong = in.of(op, group, r)
			}
		}
		if wrong != nil {
			want.Out = nil // with which Prepare tells the other ranks that the call is wrong
		}
		p.operation, err = r.Prepare(context.Background(), want)
		if err = cmp.Or(wrong, err); err != nil {
			return err
		}
		objects.add(group, aPrepared, p, p.operation.Close).store(result)
		return nil
	})
}

// of returns the part for a call of a group's runner.
func (p part) of(op string, group *object, r *collective.Runner) (view *collective.Memory, err error) {
	err = of(op, aPeerMemory, p.memory, func(_ *object, m *peerMemory) error {
		if m.group != group {
			return invalid(op, "the memory is of another group")
		}
		whole, err := m.collective(context.Background(), r)
		if err != nil || p.offset == 0 {
			view = whole
			return err
		}
		if p.offset > whole.Size() {
			return invalid(op, "the offset %d is outside of the memory's %d bytes", p.offset, whole.Size())
		}
		view, err = whole.Slice(p.offset, whole.Size()-p.offset)
		return err
	})
	return view, err
}

//export capi_prepared_launch
func capi_prepared_launch(handle, stream C.uintptr_t) C.mscclgo_status {
	const op = "launch a prepared collective"
	return call(func() error {
		return of(op, aPrepared, handle, func(_ *object, p *prepared) error {
			return of(op, aStream, stream, func(_ *object, s *gpu.Stream) error { return p.operation.Launch(s) })
		})
	})
}

//export capi_prepared_destroy
func capi_prepared_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a prepared collective", aPrepared, handle) })
}
