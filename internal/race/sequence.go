package race

// #include <stdlib.h>
// #include "host.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Clock is what somebody knows to have happened before.
type Clock uint32

// Sequence is a stream: it does one thing after the other. A nil Sequence does nothing.
type Sequence struct {
	f *Finder
	c *C.race_sequence // in memory of C, for threads there
}

// NewSequence returns a sequence with nothing done.
func (f *Finder) NewSequence(device string) *Sequence {
	c := (*C.race_sequence)(C.malloc(C.sizeof_race_sequence))
	*c = C.race_new_sequence()
	c.copy, c.by = f.text(proxyCopy), f.on(device)
	s := &Sequence{f: f, c: c}
	runtime.AddCleanup(s, func(c *C.race_sequence) { C.free(unsafe.Pointer(c)) }, c)
	return s
}

// Pointer returns the sequence for threads in C, a race_sequence, valid as long as the Sequence is reachable.
func (s *Sequence) Pointer() unsafe.Pointer {
	if s == nil {
		return nil
	}
	return unsafe.Pointer(s.c)
}

// Learn has all that the sequence does from now on happen after what a clock knows.
func (s *Sequence) Learn(after Clock) {
	if s == nil {
		return
	}
	C.race_learn(s.c, C.uint32_t(after))
}

// Clock returns what the sequence has done and knows.
func (s *Sequence) Clock() Clock {
	if s == nil {
		return 0
	}
	return Clock(s.c.known)
}

// Source is the line of Go that queued something.
type Source uint32

// Here returns the line of Go that called this module.
func (f *Finder) Here() Source {
	if f == nil {
		return 0
	}
	return Source(f.caller())
}

// begin begins something.
func (s *Sequence) begin(name, device string) C.race_launch {
	return C.race_begin(s.c, s.f.text(name), s.f.on(device), 0)
}

// Copy copies memory, between begin and end of the copy.
func (s *Sequence) Copy(device string, at Source, dst, src, n uint64) {
	if s == nil {
		return
	}
	launch := s.begin("copy of a stream", device)
	C.race_touch(&launch, C.uint64_t(src), C.uint64_t(n), C.RACE_READ, C.uint32_t(at))
	C.race_touch(&launch, C.uint64_t(dst), C.uint64_t(n), C.RACE_WRITE, C.uint32_t(at))
	C.race_finish(s.c, &launch)
}

// Fill writes memory.
func (s *Sequence) Fill(device string, at Source, dst, n uint64) {
	if s == nil {
		return
	}
	launch := s.begin("fill of a stream", device)
	C.race_touch(&launch, C.uint64_t(dst), C.uint64_t(n), C.RACE_WRITE, C.uint32_t(at))
	C.race_finish(s.c, &launch)
}

// Store writes a value that waits of kernels and streams see, and releases what the sequence
// has done. It comes before the value is written.
func (s *Sequence) Store(device string, dst, value uint64) {
	if s == nil {
		return
	}
	launch := s.begin("value written by a stream", device)
	C.race_store(&launch, C.uint64_t(dst), C.uint64_t(value), launch.name)
	C.race_finish(s.c, &launch)
}

// Add adds to a word in one atomic operation, which releases what the sequence has done, and
// returns what it was. It reports false, and does nothing, where the word is not watched.
func (s *Sequence) Add(device string, dst, value uint64) (old uint64, done bool) {
	if s == nil {
		return 0, false
	}
	launch := s.begin("addition of a stream", device)
	return s.update(&launch, C.MSCCLGO_EMU_FETCH_ADD, dst, value)
}

// Exchange is Add of a value that replaces the word, and acquires what was released with it.
// What the word was is written to old afterwards.
func (s *Sequence) Exchange(device string, at Source, dst, value, old uint64) (was uint64, done bool) {
	if s == nil {
		return 0, false
	}
	launch := s.begin("exchange of a stream", device)
	C.race_touch(&launch, C.uint64_t(old), 8, C.RACE_WRITE, C.uint32_t(at))
	return s.update(&launch, C.MSCCLGO_EMU_EXCHANGE, dst, value)
}

func (s *Sequence) update(launch *C.race_launch, what C.uint32_t, dst, value uint64) (uint64, bool) {
	var old C.uint64_t
	done := C.race_update(launch, what, C.uint64_t(dst), C.uint64_t(value), &old) != 0
	C.race_finish(s.c, launch)
	return uint64(old), done
}

// Expect tells that an Await is to come.
func (s *Sequence) Expect(src uint64) {
	if s != nil {
		C.race_expect(C.uint64_t(src))
	}
}

// Await is a wait for at least a value, or for that value, which has ended.
func (s *Sequence) Await(device string, src, value uint64, equal bool) {
	if s == nil {
		return
	}
	launch := s.begin("wait of a stream", device)
	exactly := C.int(0)
	if equal {
		exactly = 1
	}
	C.race_await(&launch, C.uint64_t(src), C.uint64_t(value), exactly)
	C.race_finish(s.c, &launch)
}

// Launch is one launch of a kernel, a race_launch of engine.h.
type Launch struct{ c C.race_launch }

// Kernel begins a launch on a device of this number. base is where the module was loaded.
func (s *Sequence) Kernel(name, device string, ordinal int, m Module, base uint64) *Launch {
	launch := &Launch{s.begin(name, device)}
	launch.c.device = C.uint32_t(ordinal + 1)
	launch.c.module = m.number
	launch.c.code = C.uint64_t(base)
	return launch
}

// Base returns what the launch is after.
func (s *Launch) Base() Clock { return Clock(s.c.base) }

// Beside has the launch be after what the one before it in its sequence was after, and after what the
// host knew, but not after that launch itself: only race_engine.previous is.
func (s *Launch) Beside(base, host Clock) {
	s.c.base = C.race_both(C.uint32_t(base), C.uint32_t(host))
}

// Pointer returns the race_launch, to be copied.
func (s *Launch) Pointer() unsafe.Pointer { return unsafe.Pointer(&s.c) }

// Finish ends a launch, when its threads have: ended is its race_launch.
func (s *Sequence) Finish(ended unsafe.Pointer) { C.race_finish(s.c, (*C.race_launch)(ended)) }

// HostNow returns what the host knows.
func (f *Finder) HostNow() Clock { return Clock(C.race_host_now()) }

// HostLearn has what the host does from now on happen after what a clock knows.
func (f *Finder) HostLearn(c Clock) { C.race_host_learn(C.uint32_t(c)) }

// Meet has it happen after what the hosts of all processes have done, as an exchange with
// them does. Nil finders do nothing.
func Meet() {
	if f, _ := Current(); f != nil {
		C.race_host_meet()
	}
}

// HostAccess is an access of the host's to memory of a device.
func (f *Finder) HostAccess(device string, at, n uint64, write bool) {
	f.hostAccess(device, at, n, write, 0)
}

// PinnedAccess is an access of the host's to memory of the host that a device reaches. The access of a
// word counts as atomic, as hosts poll so. Without a finder it does nothing.
func PinnedAccess(device string, at, n uint64, write bool) {
	f, _ := Current()
	if f == nil {
		return
	}
	kind := C.uint32_t(0)
	if n <= 8 && n&(n-1) == 0 && at%n == 0 {
		kind = C.RACE_ATOMIC | C.RACE_SYSTEM
	}
	f.hostAccess(device, at, n, write, kind)
}

func (f *Finder) hostAccess(device string, at, n uint64, write bool, kind C.uint32_t) {
	f.touch(device, at, n, write, kind, f.text("the host"), f.caller())
}

func (f *Finder) touch(device string, at, n uint64, write bool, kind, what, place C.uint32_t) {
	flags := C.RACE_READ | kind
	if write {
		flags = C.RACE_WRITE | kind
	}
	C.race_host_touch(C.uint64_t(at), C.uint64_t(n), flags, what, f.on(device), place)
}

// proxyCopy is how reports call what a proxy has a transport move.
const proxyCopy = "copy of a proxy"

// Asked is who asks for something by a trigger: the place of a kernel's line, 0 for nobody who is
// known, and the clock of what its thread released with the trigger.
type Asked struct{ Place, Known uint32 }

// Asked returns who wrote the entry of a ring.
func (f *Finder) Asked(entry unsafe.Pointer) Asked {
	asked := C.race_who_asks(entry)
	return Asked{Place: uint32(asked.place), Known: uint32(asked.known)}
}

// Queued is an access to memory of this rank's device that a transport makes by itself, at some time
// from now on, for what is queued now: by who asked a proxy for it, or else by this line of Go. What
// the sequence does so is in one order. Calls are one at a time.
func (s *Sequence) Queued(at, n uint64, write bool, asked Asked) {
	if asked.Place == 0 {
		asked = Asked{Place: uint32(s.f.caller()), Known: uint32(C.race_host_now())}
	}
	flags := C.uint32_t(C.RACE_READ)
	if write {
		flags = C.RACE_WRITE
	}
	C.race_queued(s.c, C.race_asked{place: C.race_place(asked.Place), known: C.uint32_t(asked.Known)}, C.uint64_t(at), C.uint64_t(n), flags)
}

// Handled has what proxies serve from now on come after what hosts have done, such as a trigger's
// handler.
func (f *Finder) Handled() { C.race_host_handled() }

// Route is where something goes to, or comes from: from a rank to a place in a memory of another's.
type Route struct {
	From, To int
	Memory   uint32 // its number
	Offset   uint64
}

func (r Route) c() C.race_route {
	return C.race_route{from: C.uint32_t(r.From), to: C.uint32_t(r.To), memory: C.uint32_t(r.Memory), offset: C.uint64_t(r.Offset)}
}

// Sent tells who asks for what takes the route next, so that Arrived knows.
func (s *Sequence) Sent(r Route, asked Asked) { C.race_sent(r.c(), C.race_place(asked.Place)) }

// Arrived is an access that a transport makes for a peer, after all that any host has done.
func (f *Finder) Arrived(device string, r Route, at, n uint64, write bool) {
	C.race_host_meet()
	what := f.text(fmt.Sprintf("%s of rank %d", proxyCopy, r.From))
	place := C.race_arrived(r.c())
	if place == 0 {
		place = what
	}
	f.touch(device, at, n, write, 0, what, place)
}
