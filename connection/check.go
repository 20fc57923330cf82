package connection

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// check returns an error unless m is an open memory of that rank in the
// connection's registry, can be reached, and has n bytes at the offset. The
// caller has the turn: a memory that is open here is not unmapped before
// waitForTransfers has waited for what the caller queues.
func (c *Connection) check(op string, m *registeredmem.Memory, rank int, offset, n uint64) error {
	switch {
	case c.closed.Load():
		return c.errorf(mscclgo.ErrInvalid, op, "the connection is closed")
	case m == nil:
		return c.errorf(mscclgo.ErrInvalid, op, "the memory of rank %d is nil", rank)
	case m.Registry() != c.registry:
		return c.errorf(mscclgo.ErrInvalid, op, "%v is in another registry; this one must register or import it", m)
	case m.Rank() != rank:
		return c.errorf(mscclgo.ErrInvalid, op, "%v is given where a memory of rank %d is needed", m, rank)
	case offset > m.Size() || n > m.Size()-offset:
		return c.errorf(mscclgo.ErrInvalid, op, "%d bytes at offset %d are outside %v", n, offset, m)
	case m.Closed():
		return c.errorf(mscclgo.ErrInvalid, op, "%v is closed", m)
	case freed(m) && m.Rank() == c.rank:
		return c.errorf(mscclgo.ErrInvalid, op, "the buffer of %v is closed", m)
	case freed(m):
		return c.freedAtPeer(op, m)
	case m.Buffer() == nil && !m.Transports().Has(c.transport):
		return c.errorf(mscclgo.ErrInvalid, op, "%v cannot be reached over %v", m, c.transport)
	}
	return nil
}

// checkAligned returns an error unless the word at an offset of a memory that was checked is
// aligned.
func (c *Connection) checkAligned(op string, m *registeredmem.Memory, offset uint64) error {
	if !m.Internal().WordAligned(offset) {
		return c.errorf(mscclgo.ErrInvalid, op, "the word at offset %d of %v is not aligned to 8 bytes", offset, m)
	}
	return nil
}

// op returns the name of an operation for errors.
func (c *Connection) op(what string) string {
	return "connection: " + what + " over " + c.transport.String()
}

func (c *Connection) errorf(kind mscclgo.Kind, op, format string, args ...any) error {
	return mscclgo.Errorf(kind, c.op(op), format, args...).At(c.rank, c.peer)
}

// freed reports whether the buffer of a memory that is mapped here was closed by its owner. Ranks
// of other processes keep what they have mapped.
func freed(m *registeredmem.Memory) bool {
	b := m.Buffer()
	return b != nil && b.Internal().Freed()
}

func (c *Connection) freedAtPeer(op string, m *registeredmem.Memory) error {
	return c.errorf(mscclgo.ErrRemote, op, "rank %d has closed the buffer of memory %d; nothing was sent", c.peer, m.ID())
}

// result is wrap for what the driver did to m, a memory of the peer's, whose owner may have closed
// the buffer since check.
func (c *Connection) result(op string, m *registeredmem.Memory, err error) error {
	if err != nil && c.peer != c.rank && mscclgo.KindOf(err) == mscclgo.ErrInvalid && !m.Closed() && freed(m) {
		return c.freedAtPeer(op, m)
	}
	return c.wrap(op, err)
}

// wrap returns err, of the driver, with the operation and the ranks. It keeps
// the kind. A nil err stays nil.
func (c *Connection) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	err = c.errorf(mscclgo.KindOf(err), op, "%w", err)
	if c.explain != nil {
		err = c.explain(err)
	}
	return err
}
