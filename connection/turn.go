package connection

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Turn is the right to queue on a connection, which one goroutine has at a time: what
// it queues is done in that order, with nothing of others in between; over CUDA IPC a trigger
// that a proxy took just before may be. Its methods are those of the [Connection], and have the
// same errors. The goroutine must not call the connection's own methods that queue before End.
type Turn struct{ c *Connection }

// Turn waits for the turn. End ends it. Turns come in the order in which they were asked
// for.
func (c *Connection) Turn() Turn {
	c.turns.wait(context.Background())
	return c.begin()
}

// begin returns the turn, which was taken.
func (c *Connection) begin() Turn {
	c.path.Asked = race.Asked{}
	return Turn{c}
}

// End ends the turn.
func (t Turn) End() { t.c.turns.end() }

// Write is [Connection.Write].
func (t Turn) Write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "write"
	c := t.c
	if err := c.check(op, dst, c.peer, dstOffset, n); err != nil {
		return err
	}
	if err := c.check(op, src, c.rank, srcOffset, n); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	c.queued(src, srcOffset, n, false)
	c.sent(dst, dstOffset)
	defer c.traced(native.EventWrite, c.clock(), n, 0)
	return c.result(op, dst, c.driver.Write(dst, dstOffset, src, srcOffset, n))
}

// WriteBytes is [Connection.WriteBytes].
func (t Turn) WriteBytes(dst *registeredmem.Memory, dstOffset uint64, data []byte) error {
	const op = "write bytes"
	c, n := t.c, uint64(len(data))
	if err := c.check(op, dst, c.peer, dstOffset, n); err != nil {
		return err
	}
	switch {
	case n > c.inline:
		return c.errorf(mscclgo.ErrInvalid, op, "there are %d bytes, at most %d are taken", n, c.inline)
	case n == 0:
		return nil
	}
	c.sent(dst, dstOffset)
	defer c.traced(native.EventWrite, c.clock(), n, 0)
	return c.result(op, dst, c.bytes.WriteBytes(dst, dstOffset, data))
}

// Read is [Connection.Read].
func (t Turn) Read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "read"
	c := t.c
	if err := c.check(op, dst, c.rank, dstOffset, n); err != nil {
		return err
	}
	if err := c.check(op, src, c.peer, srcOffset, n); err != nil {
		return err
	}
	switch {
	case c.reads == nil:
		return c.errorf(mscclgo.ErrUnsupported, op, "the transport's driver has no reads; have the peer write")
	case n == 0:
		return nil
	}
	c.queued(dst, dstOffset, n, true)
	c.sent(src, srcOffset)
	defer c.traced(native.EventRead, c.clock(), n, 0)
	return c.result(op, src, c.reads.Read(dst, dstOffset, src, srcOffset, n))
}

// Store is [Connection.Store].
func (t Turn) Store(dst *registeredmem.Memory, dstOffset, value uint64) error {
	const op = "store"
	c := t.c
	if err := c.checkWord(op, dst, c.peer, dstOffset); err != nil {
		return err
	}
	if c.stores == nil {
		return c.errorf(mscclgo.ErrUnsupported, op, "the transport's driver has no stores; write the value from memory")
	}
	defer c.traced(native.EventWrite, c.clock(), 8, value)
	return c.result(op, dst, c.stores.Store(dst, dstOffset, value))
}

// noAtomics is the text of what a transport without atomic operations returns.
const noAtomics = "the transport's driver has no atomic operations; have the peer change the word"

// Add is [Connection.Add].
func (t Turn) Add(dst *registeredmem.Memory, dstOffset, value uint64) error {
	const op = "add"
	c := t.c
	if err := c.checkWord(op, dst, c.peer, dstOffset); err != nil {
		return err
	}
	if c.atomics == nil {
		return c.errorf(mscclgo.ErrUnsupported, op, noAtomics)
	}
	defer c.traced(native.EventAtomic, c.clock(), 8, value)
	return c.result(op, dst, c.atomics.Add(dst, dstOffset, value))
}

// Exchange is [Connection.Exchange].
func (t Turn) Exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	const op = "exchange"
	c := t.c
	if err := c.checkWord(op, own, c.rank, ownOffset); err != nil {
		return err
	}
	if err := c.checkWord(op, theirs, c.peer, offset); err != nil {
		return err
	}
	if c.atomics == nil {
		return c.errorf(mscclgo.ErrUnsupported, op, noAtomics)
	}
	c.queued(own, ownOffset, 8, true)
	defer c.traced(native.EventAtomic, c.clock(), 8, value)
	return c.result(op, theirs, c.atomics.Exchange(own, ownOffset, theirs, offset, value))
}

// UpdateAndSync is [Connection.UpdateAndSync].
func (t Turn) UpdateAndSync(dst *registeredmem.Memory, dstOffset uint64, from, to uint64) error {
	const op = "update a word"
	c := t.c
	if err := c.check(op, dst, c.peer, dstOffset, 8); err != nil {
		return err
	}
	if to < from {
		return c.errorf(mscclgo.ErrInvalid, op, "the value must not fall, and %d is below %d", to, from)
	}
	if err := c.checkAligned(op, dst, dstOffset); err != nil {
		return err
	}
	defer c.traced(native.EventAtomic, c.clock(), 8, to)
	return c.result(op, dst, c.driver.Update(dst, dstOffset, from, to))
}

// Mark is [Connection.Mark].
func (t Turn) Mark() (Mark, error) {
	m, err := t.c.newMark("mark", false)
	if err != nil {
		return Mark{}, err
	}
	return Mark{m, m.turn.Load()}, nil
}
