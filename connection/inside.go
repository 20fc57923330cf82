package connection

import (
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Internal is for packages of this module.
func (c *Connection) Internal() inside.Connection[Turn, Operations] { return connectionInside{c} }

type connectionInside struct{ *Connection }

func (c connectionInside) Path() *native.Path { return c.path }

func (c connectionInside) Error(f native.Failure) error {
	op := map[native.Op]string{
		native.Begin:    "use the queue",
		native.Write:    "write",
		native.Read:     "read",
		native.Store:    "store",
		native.Update:   "update a word",
		native.Progress: "queue what waited",
		native.Mark:     "mark",
		native.Reach:    "reach a mark",
	}[f.Op]
	return c.wrap(op, c.native.NativeError(f))
}

func (c connectionInside) Explain(f func(error) error) { c.explain = f }

func (c connectionInside) Explained(err error) error {
	if c.explain != nil {
		return c.explain(err)
	}
	return err
}

func (c connectionInside) TryTurn(o Operations, n uint64) (Turn, bool) {
	if o == Reads && c.reads == nil || o == Exchanges && c.atomics == nil {
		o, n = Writes, 0 // it is an error
	}
	if !c.turns.try() {
		return Turn{}, false
	}
	t := c.begin()
	if !c.driver.Ready(o, n) {
		t.End()
		return Turn{}, false
	}
	return t, true
}

func (c connectionInside) Later(f func(Turn)) {
	c.turns.later(func() { f(c.begin()) })
}
