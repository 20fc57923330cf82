package connection

import (
	"context"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
)

// turn is an inside.Turn of a connection.
type turn struct{ c *Connection }

// turn waits for the turn.
func (c *Connection) turn() turn {
	c.turns.wait(context.Background())
	return c.begin()
}

// begin returns the turn, which was taken.
func (c *Connection) begin() turn {
	c.path.Asked = race.Asked{}
	return turn{c}
}

// submit queues an operation in a turn of its own.
func (c *Connection) submit(o Operation) error {
	t := c.turn()
	defer t.End()
	return t.Do(o)
}

// End ends the turn.
func (t turn) End() { t.c.turns.end() }

// Do queues an operation.
func (t turn) Do(o Operation) error {
	c, op := t.c, o.Kind.String()
	if err := c.checkOperation(op, &o); err != nil {
		return err
	}
	bytes, event := o.N, native.EventWrite
	switch {
	case o.Kind == Read:
		event = native.EventRead
	case o.Kind.word():
		bytes = 8
		if o.Kind != Store {
			event = native.EventAtomic
		}
	}
	if bytes == 0 {
		return nil
	}
	if o.Own != nil {
		c.queued(o.Own, o.OwnOffset, bytes, o.Kind != Write)
	}
	if !o.Kind.word() {
		c.sent(o.Theirs, o.Offset)
	}
	defer c.traced(event, c.clock(), bytes, o.To)
	return c.result(op, o.Theirs, c.driver.Submit(o))
}

// checkOperation returns an error unless the driver may be given an operation.
func (c *Connection) checkOperation(op string, o *Operation) error {
	n := o.N
	if o.Kind.word() {
		n = 8
	}
	reads := o.Kind == Read || o.Kind == Exchange
	if reads {
		if err := c.check(op, o.Own, c.rank, o.OwnOffset, n); err != nil {
			return err
		}
	}
	if err := c.check(op, o.Theirs, c.peer, o.Offset, n); err != nil {
		return err
	}
	if o.Kind == Write {
		return c.check(op, o.Own, c.rank, o.OwnOffset, n)
	}
	switch {
	case o.Kind == WriteBytes && n > c.inline:
		return c.errorf(mscclgo.ErrInvalid, op, "there are %d bytes, at most %d are taken", n, c.inline)
	case o.Kind == Update && o.To < o.From:
		return c.errorf(mscclgo.ErrInvalid, op, "the value must not fall, and %d is below %d", o.To, o.From)
	case !o.Kind.word():
		return nil
	case reads:
		if err := c.checkAligned(op, o.Own, o.OwnOffset); err != nil {
			return err
		}
	}
	return c.checkAligned(op, o.Theirs, o.Offset)
}

// Mark queues a mark.
func (t turn) Mark() (Mark, error) {
	m, err := t.c.newMark("mark", false)
	if err != nil {
		return Mark{}, err
	}
	return Mark{m, m.turn.Load()}, nil
}
