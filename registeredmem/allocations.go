package registeredmem

import "github.com/mscclgo/mscclgo/gpu"

// allocations numbers the allocations that registered memory lies in, so that a
// peer maps each once, however many slices of it are registered. A number is
// used once: an address is not enough, because freed memory's is given out
// again. Its user locks it.
type allocations struct {
	next uint64
	live map[gpu.Ptr]*allocation // by start
}

type allocation struct {
	number uint64
	start  gpu.Ptr
	first  *gpu.Buffer // tells whether the allocation is still there
	users  int
}

// join gives the allocation that buf lies in, for one more registered memory.
func (a *allocations) join(buf *gpu.Buffer) *allocation {
	start := buf.Ptr() - gpu.Ptr(buf.AllocationOffset())
	one := a.live[start]
	// A buffer that was closed while registered has left its address behind.
	if one == nil || closed(one.first) || one.first.Capacity() != buf.Capacity() {
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
