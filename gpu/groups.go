package gpu

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// launchGroups are the groups of ranks that use a device. A launch is a group's if an argument
// points to memory that only this group has: to a handle, or, from a handle by value, to the status
// that waits look at.
type launchGroups struct {
	memory atomic.Pointer[[]groupMemory] // by group; replaced, and never changed

	mu     sync.Mutex
	made   uint64                    // groups so far
	counts map[launchesOfName]uint64 // launches so far
}

// groupMemory is memory of the group with that number.
type groupMemory struct {
	address, bytes, group uint64
	blocks                uint32 // of a grid that there are words for at the address; 0: not for blocks
}

// launchesOfName are the launches of a kernel, or of graphs of that name, in a group.
type launchesOfName struct {
	name  string
	group uint64 // 0 where it is not known
}

// severalGroups stands in place of an address for handles of several groups; nothing is there.
const severalGroups = 1<<64 - 1

// of returns the number of the group in whose memory an address is, or 0.
func (g *launchGroups) of(address uint64) uint64 {
	if memory := g.memory.Load(); memory != nil {
		for _, m := range *memory {
			if address-m.address < m.bytes {
				return m.group
			}
		}
	}
	return 0
}

// find returns an address among arguments that is in memory of a group, 0 if none is, or
// severalGroups.
func (g *launchGroups) find(args []byte) (found uint64) {
	memory := g.memory.Load()
	if memory == nil || len(*memory) == 0 {
		return 0
	}
	one := (*memory)[0].group == (*memory)[len(*memory)-1].group
	for at := 0; at+8 <= len(args) && (found == 0 || !one); at += 8 {
		address := binary.NativeEndian.Uint64(args[at:])
		if address != 0 && g.of(address) != 0 { // most of a handle for many ranks is 0
			found = g.join(found, address)
		}
	}
	return found
}

// limit returns how many blocks in one dimension a grid may have with these arguments if it has more, or more
// dimensions, and 0 otherwise.
func (g *launchGroups) limit(grid [3]uint32, args []byte) uint32 {
	memory := g.memory.Load()
	if memory == nil {
		return 0
	}
	for _, m := range *memory {
		if m.blocks == 0 || grid[0] <= m.blocks && grid[1] == 1 && grid[2] == 1 {
			continue
		}
		for at := 0; at+8 <= len(args); at += 8 {
			if binary.NativeEndian.Uint64(args[at:]) == m.address {
				return m.blocks
			}
		}
	}
	return 0
}

// join joins what find has returned of two.
func (g *launchGroups) join(a, b uint64) uint64 {
	switch {
	case a == 0:
		return b
	case b == 0 || g.of(a) == g.of(b):
		return a
	}
	return severalGroups
}

// count counts a launch, and returns how many there have been with it.
func (g *launchGroups) count(name string, group uint64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.counts == nil {
		g.counts = map[launchesOfName]uint64{}
	}
	which := launchesOfName{name, group}
	g.counts[which]++
	return g.counts[which]
}

// replace replaces the memory of all groups by what change makes of it. The caller holds mu.
func (g *launchGroups) replace(change func([]groupMemory) []groupMemory) {
	var all []groupMemory
	if memory := g.memory.Load(); memory != nil {
		all = slices.Clone(*memory)
	}
	all = change(all)
	slices.SortStableFunc(all, func(a, b groupMemory) int { return cmp.Compare(a.group, b.group) })
	g.memory.Store(&all)
}

// launchGroup implements inside.LaunchGroup.
type launchGroup struct {
	all    *launchGroups
	number uint64
	ended  bool
}

func (g *launchGroup) Number() uint64 { return g.number }

func (g *launchGroup) Only() bool {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	return g.all.made == 1
}

func (g *launchGroup) Has(address, bytes uint64) { g.has(groupMemory{address, bytes, g.number, 0}) }

func (g *launchGroup) HasBlocks(address uint64, blocks uint32) {
	g.has(groupMemory{address, 1, g.number, blocks})
}

func (g *launchGroup) has(m groupMemory) {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	if !g.ended {
		g.all.replace(func(all []groupMemory) []groupMemory {
			return append(all, m)
		})
	}
}

func (g *launchGroup) End() {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	g.ended = true
	g.all.replace(func(all []groupMemory) []groupMemory {
		return slices.DeleteFunc(all, func(m groupMemory) bool { return m.group == g.number })
	})
	maps.DeleteFunc(g.all.counts, func(l launchesOfName, _ uint64) bool { return l.group == g.number })
}
