package ib

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// changer has this rank's device add to words of its memory and exchange them, where the host
// cannot.
type changer struct {
	mu     sync.Mutex
	stream *gpu.Stream // nil until it is needed
	old    *gpu.Buffer // pinned: what an exchanged word was
}

// open makes what is needed, before kernels run that might wait for it.
func (c *changer) open(d *gpu.Device) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil {
		return nil
	}
	d.Internal().PrepareAtomics() // what needs it has the error again
	if c.old == nil {
		if c.old, err = d.AllocHost(8); err != nil {
			return err
		}
	}
	c.stream, err = d.NewStream()
	return err
}

func (c *changer) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.stream.Close()
	if c.old != nil {
		err = errors.Join(err, c.old.Close())
	}
	return err
}

// change does what a message asks for, and returns what the word was if it exchanges.
func (c *changer) change(t *Transport, buf *gpu.Buffer, m *message) (old uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.kind == messageAdd {
		err = c.stream.Internal().Add64(buf, m.offset, m.value)
	} else {
		err = c.stream.Internal().Exchange64(buf, m.offset, m.value, c.old, 0)
	}
	if err == nil {
		err = c.stream.Synchronize(t.ctx)
	}
	if err != nil {
		return 0, err
	}
	return *(*uint64)(unsafe.Pointer(&c.old.Bytes()[0])), nil
}

// change does what a message asks for to a word of one of this rank's memories, with release
// semantics. Withdraw waits for it. It returns what the word was if it exchanges. An error of
// kind ErrSystem is this rank's device's; any other says what is wrong with the message.
func (t *Transport) change(m message) (old uint64, err error) {
	t.mu.RLock()
	r := t.memories[m.memory]
	if r != nil {
		r.users.Add(1)
		defer r.users.Done()
	}
	t.mu.RUnlock() // this may wait for the device, and all connections need the lock
	if r == nil {
		return 0, fmt.Errorf("there is no memory %d, or it is closed", m.memory)
	}
	if size := r.memory.Size(); (r.base+m.offset)%8 != 0 || m.offset > size || size-m.offset < 8 {
		return 0, fmt.Errorf("there is no word at offset %d of %v", m.offset, r.memory)
	}
	if m.kind > messageExchange {
		return 0, fmt.Errorf("a message of unknown kind %d", m.kind)
	}
	buf := r.memory.Buffer()
	if buf == nil {
		return 0, fmt.Errorf("%v is closed", r.memory)
	}
	if b := t.host(buf); b != nil {
		word := (*uint64)(unsafe.Pointer(&b[m.offset]))
		switch m.kind {
		case messageAdd:
			atomic.AddUint64(word, m.value)
		case messageExchange:
			old = atomic.SwapUint64(word, m.value)
		default:
			atomic.StoreUint64(word, m.value)
		}
		return old, nil
	}
	if m.kind != messageStore {
		if old, err = t.changer.change(t, buf, &m); err != nil {
			return 0, deviceFailed(err)
		}
		return old, nil
	}
	word, err := buf.Slice(m.offset, 8)
	if err != nil {
		return 0, err
	}
	if err := gpu.CopyIn(word, []uint64{m.value}); err != nil {
		return 0, deviceFailed(err)
	}
	return 0, nil
}

func deviceFailed(err error) error {
	return mscclgo.Errorf(mscclgo.ErrSystem, "ib: change a word", "this rank's device could not: %w", err)
}

// kindOfChange returns the kind of an error of change: ErrSystem if the device failed, and otherwise
// bad, the kind for a bad message.
func kindOfChange(err error, bad mscclgo.Kind) mscclgo.Kind {
	if errors.Is(err, mscclgo.ErrSystem) {
		return mscclgo.ErrSystem
	}
	return bad
}
