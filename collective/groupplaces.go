package collective

import (
	"math"
	"slices"

	"github.com/mscclgo/mscclgo/gpu"
)

// most returns the bytes of the largest message that is not stored where it belongs.
func (s groupSizes) most() uint64 {
	if s.large == 0 {
		return mostMessage
	}
	return s.large
}

// most is sizes.most for the packets of the runner's link.
func (g *groups) most(r *Runner) uint64 {
	most := g.sizes.most()
	if r.link == NVLink {
		most = max(most, g.sizes.largePacked/uint64(r.group.Size))
	}
	return most
}

// large reports whether a message may be stored where it belongs: by its size and its ranks alone, so that
// both of them know it.
func (t *groupTable) large(r *Runner, m *message) bool {
	return m.bytes() > t.arg.Large && r.groups.near[m.peer] >= 0 && m.peer != r.comm.Rank()
}

// place returns where the sender finds the place of what this rank receives, or 0: if the message is not
// large, or its place is in no memory that is open, of this group, and mapped by the sender.
func (t *groupTable) place(r *Runner, m *message) gpu.Ptr {
	if !t.large(r, m) {
		return 0
	}
	at, bytes := m.at(), m.bytes()
	for memory := range r.memories {
		// What is at an address that was freed may be other memory.
		if memory.theirs == nil || memory.left() || memory.theirs[m.peer] == 0 || !memory.holds(at, bytes) || memory.Buffer.Internal().Freed() {
			continue
		}
		if !slices.Contains(t.used, use(memory)) {
			t.used = append(t.used, memory, memory.placed)
			memory.offered = true
		}
		return memory.theirs[m.peer] + (at - memory.Ptr())
	}
	return 0
}

// storing returns how many lanes of a pair store messages where they belong. It is all, but if this rank sends long
// messages to several others, so many that each has a multiprocessor of its own, and a quarter of these is left for
// what stays where it is. On four H200s, of 132 multiprocessors, an all-to-all of 256 MiB took 574 us with 32 lanes to
// each rank, and 587 with 64. A rank that sends to one other alone is faster with 64.
func (t *groupTable) storing(r *Runner, sends [][]*message) uint64 {
	pairs, least := uint64(0), uint64(math.MaxUint64)
	for _, messages := range sends {
		if slices.ContainsFunc(messages, func(m *message) bool { return t.large(r, m) }) {
			pairs++
		}
		for _, m := range messages {
			if t.large(r, m) {
				least = min(least, m.bytes())
			}
		}
	}
	lanes := uint64(t.arg.Most)
	if pairs < 2 || least < r.groups.sizes.long {
		return lanes
	}
	return min(lanes, max(1, uint64(r.multiprocessors())*3/4/pairs))
}

// keepsBeside returns how many lanes keep what stays where it is: `most`, or fewer if each of the table's lanes and
// of these has a multiprocessor of its own then, but half of them at least. On two H200s, of 132
// multiprocessors, an all-to-all of 256 MiB took 377 us with 36 besides 96 that send, 431 with 44, and 390 with 64.
func (t *groupTable) keepsBeside(multiprocessors int, most uint64) uint64 {
	if left := multiprocessors - t.busy; left >= 0 && uint64(left) >= divideUp(most, 2) {
		return min(most, uint64(left))
	}
	return most
}

// multiprocessors returns how many multiprocessors of its device this rank has.
func (r *Runner) multiprocessors() int {
	return r.comm.Device().Info().Multiprocessors / r.comm.Internal().Sharers()
}

// holds reports whether so many bytes from an address are in this rank's buffer.
func (m *Memory) holds(at gpu.Ptr, bytes uint64) bool {
	first, size := m.Ptr(), m.Size()
	return at >= first && uint64(at-first) <= size && bytes <= size-uint64(at-first)
}

// addresses returns where this rank has mapped the ranks' buffers, of each 0 if it has not.
func (m *Memory) addresses() []gpu.Ptr {
	all := make([]gpu.Ptr, len(m.shared.Memories))
	for rank, theirs := range m.shared.Memories {
		if b := theirs.Buffer(); b != nil {
			all[rank] = b.Ptr()
		}
	}
	return all
}
