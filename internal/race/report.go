package race

// #include "host.h"
import "C"

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"unsafe"
)

// Old is a load of a thread, and the last write that it does not know of: race_old of engine.h.
type Old struct{ Reader, Writer, Place uint32 }

// Words tells of the write, and what would have the load get its value.
func (o Old) Words() string {
	current.Lock()
	defer current.Unlock()
	if current.finder == nil {
		return ""
	}
	a := C.race_current()
	r := reader{a: a, codes: map[uint32]*code{}}
	side := func(actor, place uint32, flags C.uint32_t) Access {
		return r.access(&C.race_side{instance: a.instance[actor>>10], thread: C.uint32_t(actor & 1023), place: C.race_place(place), flags: flags})
	}
	race := Race{First: side(o.Writer, o.Place, C.RACE_WRITE), Second: side(o.Reader, 0, C.RACE_READ)}
	w := race.First
	return fmt.Sprintf("not the value of the write at %s, by thread %v of block %v of %s on %s; %s", w.Place, triple(w.Thread), triple(w.Block), w.Kernel, w.Where, race.Order())
}

// Access is one of the two accesses of a race.
type Access struct {
	Kernel   string // or what a stream or the host did
	Where    string // the rank, or the device
	Block    [3]uint32
	Thread   [3]uint32
	Place    string // file:line
	Write    bool
	Atomic   bool
	Constant bool   // a read by __ldg
	Sync     string // the thread's last synchronisation before it, or ""
	of       bool   // a thread of a kernel
	stream   uint32 // its number
	launch   uint32 // in the stream
	mask     uint32 // bytes of a word of 8
}

// Race is a pair of accesses that nothing orders.
type Race struct {
	First, Second Access
	Memory        string
	Offset        uint64 // bytes
	Size          int    // bytes
}

// Findings are what the finder has found in an arena.
type Findings struct {
	Races   []Race   // in the order of their discovery, one for each pair of lines, kernels and kinds
	Lost    []string // what was not watched
	Devices int      // emulated devices that were opened
}

// Read returns what was found in an arena.
func Read(arena *os.File) (*Findings, error) {
	current.Lock()
	defer current.Unlock()
	if current.finder == nil {
		if err := begin(arena, 0); err != nil {
			return nil, err
		}
		defer end()
	}
	a := C.race_current()
	r := reader{a: a, codes: map[uint32]*code{}}
	found := &Findings{Devices: int(a.joined)}
	reported := map[pair]bool{}
	for i := range min(uint32(a.reports), C.RACE_REPORTS) {
		report := &a.report[i]
		if report.ready == 0 {
			continue
		}
		// The arena tells places apart by numbers, and each process numbers lines of Go anew.
		if race := r.race(report); !reported[race.pair()] {
			reported[race.pair()] = true
			found.Races = append(found.Races, race)
		}
	}
	found.Lost = r.lost()
	return found, nil
}

// side is what an access is, whoever made it.
type side struct {
	place, kernel string
	write, atomic bool
}

func (a Access) side() side { return side{a.Place, a.Kernel, a.Write, a.Atomic} }

// pair is the two sides of a race, in an order that depends on them only.
type pair [2]side

func (r Race) pair() pair {
	a, b := r.First.side(), r.Second.side()
	order := cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.kernel, b.kernel))
	if order > 0 || order == 0 && (b.write && !a.write || b.write == a.write && b.atomic) {
		a, b = b, a
	}
	return pair{a, b}
}

// reader reads an arena.
type reader struct {
	a     *C.race_arena
	codes map[uint32]*code
}

func (r *reader) text(n C.uint32_t) string {
	if n == 0 || n >= C.RACE_TEXT_BYTES {
		return ""
	}
	return C.GoString(&r.a.texts[n])
}

func (r *reader) race(c *C.race_report) Race {
	race := Race{First: r.access(&c.first), Second: r.access(&c.second), Offset: uint64(c.offset), Size: int(c.size)}
	switch {
	case c.memory == 0:
		race.Memory, race.Offset = "__shared__ memory", 0
	case c.module != 0:
		name := "variables"
		if v, ok := r.code(uint32(c.module)).variable(uint64(c.offset)); ok {
			name, race.Offset = "variable "+v.name, uint64(c.offset)-v.address
		}
		race.Memory = name + " " + r.text(c.memory)
	default:
		race.Memory = r.text(c.memory)
	}
	return race
}

func (r *reader) access(s *C.race_side) Access {
	a := Access{
		Kernel: r.text(s.instance.name), Where: r.text(s.instance.where), Place: r.place(uint32(s.place)),
		Write: s.flags&C.RACE_WRITE != 0, Atomic: s.flags&C.RACE_ATOMIC != 0, Constant: s.flags&C.RACE_CONSTANT != 0, of: s.instance.grid[0] != 0,
		stream: uint32(s.instance.stream), launch: uint32(s.instance.launch), mask: uint32(s.mask),
	}
	if a.of {
		a.Block = split(uint32(s.instance.block), s.instance.grid)
		a.Thread = split(uint32(s.thread), s.instance.shape)
	}
	if what := r.text(s.sync.what); what != "" {
		a.Sync = what + " at " + r.place(uint32(s.sync.place))
	}
	return a
}

// split returns the three coordinates of a number.
func split(n uint32, size [3]C.uint32_t) [3]uint32 {
	x, y := max(1, uint32(size[0])), max(1, uint32(size[1]))
	return [3]uint32{n % x, n / x % y, n / x / y}
}

// place returns the file and line of a place.
func (r *reader) place(place uint32) string {
	module, offset := place>>C.RACE_CODE_BITS, place&(1<<C.RACE_CODE_BITS-1)
	if module == 0 {
		return r.text(C.uint32_t(offset))
	}
	c := r.code(module)
	if c == nil {
		return fmt.Sprintf("address %#x", offset)
	}
	return c.place(uint64(offset))
}

// code returns a module's code, or nil if it cannot be read.
func (r *reader) code(module uint32) *code {
	c, ok := r.codes[module]
	if !ok {
		m := r.a.module[module]
		image := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r.a), m.offset)), m.size)
		c, _ = openCode(image)
		r.codes[module] = c
	}
	return c
}

func (r *reader) lost() []string {
	var lost []string
	for _, l := range []struct {
		bit  C.uint32_t
		text string
	}{
		{C.RACE_LOST_MEMORY, "the finder has used all the memory that it may take (17 bytes for each byte that the program accessed; half of what is free, unless -memory of mscclgo race says otherwise), and watched nothing from then on; give it more, or use smaller buffers"},
		{C.RACE_LOST_REGION, fmt.Sprintf("more memory was allocated at one time than the finder has address space or numbers for (%d GiB, or %d allocations, of all ranks together), and some of it was not watched; use smaller or fewer buffers", (C.RACE_ARENA_BYTES-C.RACE_SHADOW_START)/(C.RACE_PAGE_SHADOW/C.RACE_PAGE)>>30, C.RACE_REGIONS)},
		{C.RACE_LOST_LAUNCHES, "there were more blocks, launches or streams than can be told apart, so that later ones are not watched well"},
		{C.RACE_LOST_REPORTS, fmt.Sprintf("there were more than %d races, which are not all reported", C.RACE_REPORTS)},
		{C.RACE_LOST_CODE, "a module was compiled beforehand and not for the race finder, so that its kernels are not watched"},
		{C.RACE_LOST_CLOCKS, "the run was too long for the finder's memory, and nothing was watched from then on"},
	} {
		if r.a.lost&l.bit != 0 {
			lost = append(lost, l.text)
		}
	}
	return lost
}

// String describes an access in one line.
func (a Access) String() string {
	kind := "read"
	if a.Write {
		kind = "write"
	}
	if a.Atomic {
		kind = "atomic " + kind
	}
	var b strings.Builder
	switch {
	case a.of:
		fmt.Fprintf(&b, "%s at %s, by thread %v of block %v of %s on %s", kind, a.Place, triple(a.Thread), triple(a.Block), a.Kernel, a.Where)
	case a.Kernel == "the host":
		fmt.Fprintf(&b, "%s at %s, by the host, of %s", kind, a.Place, a.Where)
	case a.Place == a.Kernel: // nothing told the line
		fmt.Fprintf(&b, "%s by a %s on %s", kind, a.Kernel, a.Where)
	case strings.HasPrefix(a.Kernel, proxyCopy):
		asked, _, _ := strings.Cut(a.Place, " (in ") // where the trigger is written is no news
		fmt.Fprintf(&b, "%s by a %s on %s, which %s asked for", kind, a.Kernel, a.Where, asked)
	default:
		fmt.Fprintf(&b, "%s at %s, by a %s on %s", kind, a.Place, a.Kernel, a.Where)
	}
	if a.Sync != "" {
		fmt.Fprintf(&b, "; last synchronisation: %s", a.Sync)
	} else if a.of {
		b.WriteString("; no synchronisation before it in this launch")
	}
	return b.String()
}

// triple prints coordinates, of which the last are often zeros.
type triple [3]uint32

func (t triple) String() string {
	if t[1] == 0 && t[2] == 0 {
		return fmt.Sprint(t[0])
	}
	return fmt.Sprintf("(%d,%d,%d)", t[0], t[1], t[2])
}

// String describes a race in a few lines.
func (r Race) String() string {
	where := "byte " + fmt.Sprint(r.Offset) + " of the " + r.Memory
	if r.Offset == 0 && r.Memory == "__shared__ memory" {
		where = r.Memory + " of a block"
	}
	return fmt.Sprintf("race on %s (%d bytes)\n  %v\n  %v\n  %s", where, r.Size, r.Second, r.First, r.Order())
}

// Order says what would order the two accesses.
func (r Race) Order() string {
	a, b := r.First, r.Second
	switch {
	case a.Atomic && b.Atomic && a.mask != b.mask:
		return "what would make them atomic for each other: the same bytes in both, by one size of loads and stores"
	case a.Atomic && b.Atomic && a.Where == b.Where:
		return "what would make them atomic for each other: device scope of both (atomicAdd, not atomicAdd_block)"
	case a.Constant || b.Constant:
		return "what would have the read get the value: a load that is not __ldg, or a launch of its own behind the write"
	case a.Atomic && b.Atomic:
		return "what would make them atomic for each other: system scope of both (atomicAdd_system, Scope::System)"
	case a.of && b.of && a.stream == b.stream && a.launch != b.launch:
		return "what would order them: awaitPrevious in the later launch, which was made with Overlap, before the access"
	case a.of && b.of && a.Where == b.Where && a.Kernel == b.Kernel && a.Block == b.Block && a.Thread != b.Thread && a.Thread[0]/32 == b.Thread[0]/32:
		return "what would order them: __syncwarp between them, or __syncthreads"
	case a.of && b.of && a.Where == b.Where && a.Kernel == b.Kernel && a.Block == b.Block:
		return "what would order them: __syncthreads between them"
	case a.of && b.of && a.Where == b.Where:
		return "what would order them: two launches of one stream, an event, or a release and an acquire at device scope"
	case a.of && b.of:
		return "what would order them: a signal after the first, with __syncthreads before it, and a wait before the second, which acquires at system scope"
	case strings.Contains(a.Kernel+b.Kernel, "host"):
		return "what would order them: Stream.Synchronize before the host's access, or a launch after it"
	case strings.Contains(a.Kernel+b.Kernel, "proxy"):
		return "what would order them: __syncthreads before the put, a wait for its signal, or a flush before the source is written"
	}
	return "what would order them: one stream, or an event between two"
}
