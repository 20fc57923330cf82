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
}

// collective returns the memory for prepared calls. All ranks call it for the same memories in
// the same order, since the first call for each is collective.
func (m *peerMemory) collective(ctx context.Context, r *collective.Runner) (*collective.Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared == nil {
		shared, err := r.Share(ctx, m.buffer)
		if err != nil {
			return nil, err
		}
		m.shared = shared
	}
	return m.shared, nil
}

// forget has what is for prepared calls made again in the next group.
func (m *peerMemory) forget() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.shared.Close(context.Background()) // which waits for nobody: it was not carried
	m.shared = nil
	return err
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
		in, out := *(*C.uintptr_t)(unsafe.Pointer(&c.in)), *(*C.uintptr_t)(unsafe.Pointer(&c.out))
		want.InPlace = in == 0
		r, err := g.collectives()
		if err != nil {
			return err
		}
		var wrong error
		if want.Count > 0 {
			want.Out, wrong = prepareMemory(op, group, r, out, uint64(c.out_offset))
			if wrong == nil && !want.InPlace {
				want.In, wrong = prepareMemory(op, group, r, in, uint64(c.in_offset))
			}
		}
		if wrong != nil {
			want.Out = nil // with which Prepare tells the other ranks that the call is wrong
		}
		o, err := r.Prepare(context.Background(), want)
		if err = cmp.Or(wrong, err); err != nil {
			return err
		}
		objects.add(group, aPrepared, o, o.Close).store(result)
		return nil
	})
}

// prepareMemory returns the memory of a handle from an offset on.
func prepareMemory(op string, group *object, r *collective.Runner, handle C.uintptr_t, offset uint64) (part *collective.Memory, err error) {
	err = of(op, aPeerMemory, handle, func(_ *object, m *peerMemory) error {
		if m.group != group {
			return invalid(op, "the memory is of another group")
		}
		whole, err := m.collective(context.Background(), r)
		if err != nil || offset == 0 {
			part = whole
			return err
		}
		if offset > whole.Size() {
			return invalid(op, "the offset %d is outside of the memory's %d bytes", offset, whole.Size())
		}
		part, err = whole.Slice(offset, whole.Size()-offset)
		return err
	})
	return part, err
}

//export capi_prepared_launch
func capi_prepared_launch(handle, stream C.uintptr_t) C.mscclgo_status {
	const op = "launch a prepared collective"
	return call(func() error {
		return of(op, aPrepared, handle, func(_ *object, o *collective.Operation) error {
			return of(op, aStream, stream, func(_ *object, s *gpu.Stream) error { return o.Launch(s) })
		})
	})
}

//export capi_prepared_destroy
func capi_prepared_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return objects.destroy("destroy a prepared collective", aPrepared, handle) })
}
