package registeredmem

import "github.com/mscclgo/mscclgo/gpu"

// allocations numbers the allocations that registered memory lies in, so that a
// peer maps each once, however many slices of it are registered. A number is
// used once; an address would not do, because freed memory is allocated again.
// The caller of its methods holds a lock.
type allocations struct {
	next uint64
	live map[gpu.Ptr]*allocation // by start
}

type allocation struct {
	number uint64
	start  gpu.Ptr
	first  *gpu.Buffer // closed if the allocation is gone
	users  int
}

// join returns the allocation that buf lies in, for one more registered memory.
func (a *allocations) join(buf *gpu.Buffer) *allocation {
	start := buf.Ptr() - gpu.Ptr(buf.Internal().AllocationOffset())
	one := a.live[start]
	// A buffer that was closed while registered has left its address behind.
	if one == nil || closed(one.first) || one.first.Internal().Capacity() != buf.Internal().Capacity() {
		one = &allocation{number: a.next, start: start, first: buf}
		a.next++
		if a.live == nil {
			a.live = map[gpu.Ptr]*allocation{}
		}
		a.live[start] = one
	}
	one.users++
	return one
}

// leave takes one registered memory out.
func (a *allocations) leave(one *allocation) {
	one.users--
	if one.users == 0 && a.live[one.start] == one {
		delete(a.live, one.start)
	}
}
