package communicator

import (
	"cmp"
	"slices"
)

// span is a range of memory.
type span struct{ offset, size uint64 }

// spans are ranges that are free, in the order of their offsets. No two touch each other.
type spans []span

// take takes n bytes, first fit, and reports whether there are so many in one piece.
func (s *spans) take(n uint64) (span, bool) {
	for i, f := range *s {
		if f.size < n {
			continue
		}
		(*s)[i] = span{f.offset + n, f.size - n}
		if f.size == n {
			*s = slices.Delete(*s, i, i+1)
		}
		return span{f.offset, n}, true
	}
	return span{}, false
}

// give gives back what take took.
func (s *spans) give(one span) {
	i, _ := slices.BinarySearchFunc(*s, one.offset, func(f span, offset uint64) int { return cmp.Compare(f.offset, offset) })
	free := slices.Insert(*s, i, one)
	if i+1 < len(free) && free[i].offset+free[i].size == free[i+1].offset {
		free[i].size += free[i+1].size
		free = slices.Delete(free, i+1, i+2)
	}
	if i > 0 && free[i-1].offset+free[i-1].size == free[i].offset {
		free[i-1].size += free[i].size
		free = slices.Delete(free, i, i+1)
	}
	*s = free
}

// largest returns how many bytes are free in one piece.
func (s spans) largest() (n uint64) {
	for _, f := range s {
		n = max(n, f.size)
	}
	return n
}
