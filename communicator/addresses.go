package communicator

import (
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo/gpu"
)

// addresses are those of the ranks from [devicecode.RanksByValue] on, in device memory, where the
// kernels of this rank read them. The zero value has none.
type addresses struct {
	piece
	stored []gpu.Ptr // what is there
}

// place stores addresses, all of a handle's or none, and returns where: each time at the same
// place, as graphs may hold it. It writes nothing that is there already, as kernels of the handle
// before may be reading it.
func (a *addresses) place(private *arena, at []gpu.Ptr) (gpu.Ptr, error) {
	if len(at) == 0 {
		return 0, nil
	}
	n := uint64(len(at)) * uint64(unsafe.Sizeof(at[0]))
	if a.slab != nil && a.size < n {
		a.free(private)
	}
	if a.slab == nil {
		var err error
		if a.piece, err = private.alloc(n); err != nil {
			return 0, err
		}
	}
	b, err := a.buffer(n)
	if err != nil {
		return 0, err
	}
	if slices.Equal(at, a.stored) {
		return b.Ptr(), nil
	}
	a.stored = nil
	if err := gpu.CopyIn(b, at); err != nil {
		return 0, err
	}
	a.stored = slices.Clone(at)
	return b.Ptr(), nil
}

// free frees the memory. No kernel may use it any longer.
func (a *addresses) free(private *arena) {
	if a.slab != nil {
		private.free(a.piece)
		*a = addresses{}
	}
}
