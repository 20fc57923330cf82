package capi

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

// Close unmaps the peers' buffers. Where the group goes too, its runner closes what is for
// prepared calls, of all memories at once.
func (m *peerMemory) Close() error {
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
	memory handle
	offset uint64
}

// partingTime is how long a rank that destroys something waits for the others to do so too.
const partingTime = 5 * time.Second

func (c *call) peerMemoryCreate(of, buffer handle, result *handle) error {
	owner, g := get[*group](c.to("share a buffer"), aGroup, of)
	b := c.buffer(buffer)
	return makes(c, result, owner, aPeerMemory, func() (*peerMemory, error) {
		peers, err := g.comm.Share(context.Background(), b)
		return &peerMemory{group: owner, buffer: b, peers: peers}, err
	})
}

func (c *call) peerMemoryGetHandle(memory handle, result *C.mscclgo_peer_memory_handle) error {
	_, m := get[*peerMemory](c.to("get the handle of peers' memory"), aPeerMemory, memory)
	h, err := m.peers.Handle()
	return putHandle(c, result, h, err)
}

func (c *call) prepare(of handle, wanted *C.mscclgo_call, result *handle) error {
	owner, g := get[*group](c.to("prepare a collective"), aGroup, of)
	// What is wrong on this rank it tells the others, which are in the call too.
	p := &prepared{}
	wrong := isNull(c.op, unsafe.Pointer(wanted), unsafe.Pointer(result))
	if wrong == nil {
		wrong = p.read(c.op, wanted)
	}
	r, err := g.collectives()
	if err != nil {
		return cmp.Or(wrong, err)
	}
	c.check(p.agree(c, owner, r, wrong))
	want := p.call
	for i, to := range []**collective.Memory{&want.Out, &want.In}[:len(p.memories)] {
		if wrong == nil {
			*to, wrong = p.memories[i].of(c, owner, r)
		}
	}
	if wrong != nil {
		want.Out = nil // with which Prepare tells the other ranks that the call is wrong
	}
	p.operation, err = r.Prepare(context.Background(), want)
	if err = cmp.Or(wrong, err); err != nil {
		return err
	}
	objects.add(owner, aPrepared, p, p.operation.Close).store(result)
	return nil
}

// read reads the call to prepare.
func (p *prepared) read(op string, c *C.mscclgo_call) error {
	if c.collective > 255 || c._type > 255 || c.operation > 255 {
		return invalid(op, "there is no collective %d, or no type %d, or no operation %d", int(c.collective), int(c._type), int(c.operation))
	}
	out := part{*(*handle)(unsafe.Pointer(&c.out)), uint64(c.out_offset)}
	in := part{*(*handle)(unsafe.Pointer(&c.in)), uint64(c.in_offset)}
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
// the ranks that do so too. wrong is what is wrong already, or nil. Collective.
func (p *prepared) agree(c *call, group *object, r *collective.Runner, wrong error) error {
	text := p.call.String()
	for i, m := range p.memories {
		state := ""
		if wrong == nil {
			state, wrong = m.look(c, group)
		}
		if i > 0 && m.memory == p.memories[0].memory {
			state = "the same"
		}
		text += [...]string{", to ", ", from "}[i] + state
	}
	return r.Internal().Agree(context.Background(), "compare calls to prepare", text, wrong)
}

// look returns what is wrong with the part, or what all ranks know of its memory.
func (p part) look(c *call, group *object) (text string, err error) {
	m, err := p.use(c, group)
	switch {
	case err != nil:
		return "", err
	case m.reached():
		return "memory that others were prepared on", nil
	}
	return "memory that no call of the group was prepared on", nil
}

// of returns the part for a call of a group's runner.
func (p part) of(c *call, group *object, r *collective.Runner) (*collective.Memory, error) {
	m, err := p.use(c, group)
	if err != nil {
		return nil, err
	}
	whole, err := m.collective(context.Background(), r)
	if err != nil || p.offset == 0 {
		return whole, err
	}
	return whole.Slice(p.offset, whole.Size()-p.offset)
}

// use returns the memory of the part, if it can be used in a group.
func (p part) use(c *call, group *object) (*peerMemory, error) {
	_, m, err := find[*peerMemory](c, aPeerMemory, p.memory)
	switch {
	case err != nil:
		return nil, err
	case m.group != group:
		return nil, invalid(c.op, "the memory is of another group")
	case p.offset > m.buffer.Size():
		return nil, invalid(c.op, "the offset %d is outside of the memory's %d bytes", p.offset, m.buffer.Size())
	}
	return m, nil
}

func (c *call) prepared(h handle) *prepared {
	_, p := get[*prepared](c, aPrepared, h)
	return p
}

func (c *call) preparedLaunch(prepared, stream handle) error {
	return c.to("launch a prepared collective").prepared(prepared).operation.Launch(c.stream(stream))
}
