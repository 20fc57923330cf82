package connection

import (
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Internal is for packages of this module.
func (c *Connection) Internal() inside.Connection[Operation, Kind, Mark] { return connectionInside{c} }

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

func (c connectionInside) Turn() inside.Turn[Operation, Mark] { return c.turn() }

func (c connectionInside) TryTurn(k Kind, n uint64) (inside.Turn[Operation, Mark], bool) {
	if !c.turns.try() {
		return nil, false
	}
	t := c.begin()
	if !c.driver.Ready(k, n) {
		t.End()
		return nil, false
	}
	return t, true
}

func (c connectionInside) Later(f func(inside.Turn[Operation, Mark])) { c.turns.later(f) }
