package communicator

import (
	"slices"

	"github.com/mscclgo/mscclgo/gpu"
)

// table is device memory of this rank's kernels alone, with handles or other values. It stays where it is, as graphs may
// hold its address, while it has the same size. The zero value has none.
type table struct {
	piece
	memory *gpu.Buffer // nil if there is none
}

// room has the table be n bytes, of any content if that is not its size already.
func (t *table) room(private *arena, n uint64) error {
	if t.memory != nil && t.memory.Size() == n {
		return nil
	}
	p, err := private.alloc(n)
	if err != nil {
		return err
	}
	memory, err := p.buffer(n)
	if err != nil {
		private.free(p)
		return err
	}
	t.free(private) // not before: a table of another size has another address
	*t = table{p, memory}
	return nil
}

// store has a table be values.
func store[T any](t *table, private *arena, values []T) error {
	if err := t.room(private, sizeIn[T](len(values))); err != nil {
		return err
	}
	return gpu.CopyIn(t.memory, values)
}

// free frees the memory. No kernel may use it any longer. It does nothing on nil.
func (t *table) free(private *arena) {
	if t != nil && t.memory != nil {
		private.free(t.piece)
		*t = table{}
	}
}

// addresses are addresses of the memory of the ranks from layout.RanksByValue on. They lie in device
// memory, where the kernels of this rank read them. The zero value has none.
type addresses struct {
	table
	stored []gpu.Ptr // what is there
}

// place stores addresses, all of a handle's or none, and returns where. It writes nothing that is there already, as
// kernels of the handle before may be reading it.
func (a *addresses) place(private *arena, at []gpu.Ptr) (gpu.Ptr, error) {
	if len(at) == 0 {
		return 0, nil
	}
	if a.memory == nil || !slices.Equal(at, a.stored) {
		a.stored = nil
		if err := store(&a.table, private, at); err != nil {
			return 0, err
		}
		a.stored = slices.Clone(at)
	}
	return a.memory.Ptr(), nil
}
