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
	"github.com/mscclgo/mscclgo/internal/native"
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
// the same order, since the first call for each is collective, also in the group that follows. So
// they have agreed before: see prepared.agree.
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

// reached reports whether collective asks nobody.
func (m *peerMemory) reached() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shared != nil && !m.left
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
	call      collective.Call // without its memories
	memories  []part          // which the call has: out, and in if it is not in place
}

// part is peer memory from an offset on.
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
		// What is wrong on this rank it tells the others, which are in the call too.
		p := &prepared{}
		wrong := isNull(op, unsafe.Pointer(c), unsafe.Pointer(result))
		if wrong == nil {
			wrong = p.read(op, c)
		}
		r, err := g.collectives()
		if err != nil {
			return cmp.Or(wrong, err)
		}
		if err := p.agree(op, group, r, wrong); err != nil {
			return err
		}
		want := p.call
		for i, to := range []**collective.Memory{&want.Out, &want.In}[:len(p.memories)] {
			if wrong == nil {
				*to, wrong = p.memories[i].of(op, group, r)
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

// read reads the call to prepare.
func (p *prepared) read(op string, c *C.mscclgo_call) error {
	if c.collective > 255 || c._type > 255 || c.operation > 255 {
		return invalid(op, "there is no collective %d, or no type %d, or no operation %d", int(c.collective), int(c._type), int(c.operation))
	}
	out := part{*(*C.uintptr_t)(unsafe.Pointer(&c.out)), uint64(c.out_offset)}
	in := part{*(*C.uintptr_t)(unsafe.Pointer(&c.in)), uint64(c.in_offset)}
	p.call = collective.Call{
		Kind: collective.Kind(c.collective), Type: collective.Type(c._type), Op: collective.Op(c.operation),
		Root: int(c.root), Count: uint64(c.count), InPlace: in.memory == 0, Overlap: c.overlap != 0,
	}
	switch {
	case p.call.Count == 0:
	case p.call.InPlace:
		p.memories = []part{out}
	default:
		p.memories = []part{out, in}
	}
	return nil
}

// agree has the ranks find out whether the call is right on all, and the same, before it shares memory with
// those that do so too. wrong is what is wrong already, or nil. Collective.
func (p *prepared) agree(op string, group *object, r *collective.Runner, wrong error) error {
	text := p.call.String()
	for i, m := range p.memories {
		state := ""
		if wrong == nil {
			state, wrong = m.look(op, group)
		}
		if i > 0 && m.memory == p.memories[0].memory {
			state = "the same"
		}
		text += [...]string{", to ", ", from "}[i] + state
	}
	return native.Agree(context.Background(), r, "compare calls to prepare", text, wrong)
}

// look returns what is wrong with the part, or what all ranks know of its memory.
func (p part) look(op string, group *object) (text string, err error) {
	err = p.use(op, group, func(m *peerMemory) error {
		text = "memory that no call of the group was prepared on"
		if m.reached() {
			text = "memory that others were prepared on"
		}
		return nil
	})
	return text, err
}

// of returns the part for a call of a group's runner.
func (p part) of(op string, group *object, r *collective.Runner) (view *collective.Memory, err error) {
	err = p.use(op, group, func(m *peerMemory) error {
		whole, err := m.collective(context.Background(), r)
		if err != nil || p.offset == 0 {
			view = whole
			return err
		}
		view, err = whole.Slice(p.offset, whole.Size()-p.offset)
		return err
	})
	return view, err
}

// use has f called with the memory of the part, if it can be used in a group.
func (p part) use(op string, group *object, f func(*peerMemory) error) error {
	return of(op, aPeerMemory, p.memory, func(_ *object, m *peerMemory) error {
		if m.group != group {
			return invalid(op, "the memory is of another group")
		}
		if p.offset > m.buffer.Size() {
			return invalid(op, "the offset %d is outside of the memory's %d bytes", p.offset, m.buffer.Size())
		}
		return f(m)
	})
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
