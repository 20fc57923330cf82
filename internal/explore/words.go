package explore

// #include "report.h"
import "C"

import (
	"fmt"
	"regexp"
	"slices"
)

// part returns some bits of a number of report.h.
func (w Who) part(lowest, bits uint) uint64 { return uint64(w) >> lowest & (1<<bits - 1) }

func (w Who) kind() uint64 { return w.part(C.WHO_KIND, 4) }

// words names a thread. The caller holds mu.
func (x *Explorer) words(w Who) string {
	rank, stream := w.part(C.WHO_RANK, 8), w.part(C.WHO_STREAM, 10)
	switch w.kind() {
	case 0:
		return "nobody"
	case C.WHO_IS_HOST:
		return fmt.Sprintf("the goroutine of rank %d", rank)
	case C.WHO_IS_STREAM:
		return fmt.Sprintf("stream %d of rank %d", stream, rank)
	case C.WHO_IS_PROXY:
		return fmt.Sprintf("proxy %d of rank %d", stream, rank)
	}
	kernel := C.GoString(C.explore_kernel(C.explore_who(w)))
	return fmt.Sprintf("thread %d of block %d of %s (launch %d of stream %d) on rank %d",
		w.part(0, 10), w.part(C.WHO_BLOCK, 16), kernel, w.part(C.WHO_LAUNCH, 16), stream, rank)
}

// points are what a thread is about to do.
var points = map[uint32]string{
	C.EXPLORE_BEGIN: "at its beginning", C.EXPLORE_READ: "before a read", C.EXPLORE_WRITE: "before a write",
	C.EXPLORE_LOAD: "before an atomic load", C.EXPLORE_UPDATE: "before an atomic store or update",
	C.EXPLORE_FENCE: "before a fence", C.EXPLORE_YIELD: "where it polls", C.EXPLORE_LOOK: "where it waits",
	C.EXPLORE_BARRIER: "at a barrier of its block", C.EXPLORE_WARP: "in a warp function", C.EXPLORE_END: "at its end",
	C.EXPLORE_STEP: "before its next operation", C.EXPLORE_HOST: "in a call", C.EXPLORE_WAIT: "where it waits",
	C.EXPLORE_PREVIOUS: "in awaitPrevious",
	C.EXPLORE_OLD:      "in a load",
}

// at names a thread and where it is, if that is known.
func (x *Explorer) at(w Who, point uint32, address uint64) string {
	text := x.words(w)
	if w != 0 {
		text += ", " + points[point&0xff]
	}
	if address == 0 || w.kind() != C.WHO_IS_BLOCK {
		return text
	}
	// The module is the last that begins before the address: one that is gone may have been there.
	best := -1
	for i, c := range x.codes {
		if c.base <= address && (best < 0 || c.base >= x.codes[best].base) {
			best = i
		}
	}
	if best < 0 {
		return text
	}
	return text + " at " + x.codes[best].place(address)
}

// threads are the numbers of threads, in which switches differ that are told of once.
var threads = regexp.MustCompile(`thread [0-9(),]+ of block [0-9(),]+`)

// Lines tells of switches: first of loads that get old values, then of the others, in the order of the
// run. Switches that differ by their threads are one line. Of switches without a text, and of the start-up,
// before a kernel's thread takes part, it tells only the number.
func Lines(switches []Switch) []string {
	others := slices.DeleteFunc(slices.Clone(switches), func(s Switch) bool { return s.Age > 0 })
	told := slices.DeleteFunc(slices.Clone(switches), func(s Switch) bool { return s.Age == 0 })
	start := max(0, slices.IndexFunc(others, func(s Switch) bool {
		return s.From.kind() == C.WHO_IS_BLOCK || s.To.kind() == C.WHO_IS_BLOCK
	}))
	told = append(told, others[start:]...)
	var lines []string
	more := map[string]int{}
	for _, s := range told {
		kind := threads.ReplaceAllString(s.Text, "")
		if more[kind]++; more[kind] == 1 && s.Text != "" {
			lines = append(lines, s.Text)
		}
	}
	for i, line := range lines {
		if n := more[threads.ReplaceAllString(line, "")] - 1; n > 0 {
			lines[i] += fmt.Sprintf(" (and %d more like it)", n)
		}
	}
	if n := more[""]; n > 0 {
		lines = append(lines, fmt.Sprintf("%d more", n))
	}
	if start > 0 {
		lines = append(lines, fmt.Sprintf("%d of the start-up, before a kernel's thread took part", start))
	}
	return lines
}
