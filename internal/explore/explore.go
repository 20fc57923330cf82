// Package explore has the threads of emulated devices, their streams and the goroutines of a
// group's ranks run one at a time, in an order that follows from a seed, or from the switches
// of an earlier run: mistakes that show in few orders show in one of many runs, and then again
// in each run of that seed. See docs/RACES.md.
package explore

// #include <stdlib.h>
// #include "turns.h"
import "C"

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/race"
)

// Scheduler is how the next thread is chosen.
type Scheduler string

const (
	Fixed      Scheduler = "fixed"       // the one that runs goes on while it can, but for Plan.Switches
	Random     Scheduler = "random"      // any
	PCT        Scheduler = "pct"         // the one of the highest priority, which change now and then
	RoundRobin Scheduler = "round-robin" // each for a number of steps
)

// Schedulers are the schedulers that a seed is for.
var Schedulers = []Scheduler{Random, PCT, RoundRobin}

func (s Scheduler) number() (C.explore_scheduler, bool) {
	n, ok := map[Scheduler]C.explore_scheduler{
		Fixed: C.EXPLORE_FIXED, Random: C.EXPLORE_RANDOM, PCT: C.EXPLORE_PCT, RoundRobin: C.EXPLORE_ROUND_ROBIN,
	}[s]
	return n, ok
}

// Who is a thread of a kernel, a stream, a proxy or a rank's goroutine: the same in runs that do
// the same.
type Who uint64

// Switch is a choice of another thread than [Fixed] would have chosen, or of an older value than the
// newest for a load.
type Switch struct {
	From  Who    // which had the turn, or loads
	Count uint64 // of its steps until then
	To    Who    `json:",omitempty"`
	Age   uint32 `json:",omitempty"` // of a load: of how many writes ago the value is; there is no To
	Text  string `json:",omitempty"` // in words, with the line of From
}

// Step is what was done next in a run.
type Step struct {
	Who          Who
	Place, Point uint32
}

// Plan is what a run is to be.
type Plan struct {
	Scheduler Scheduler
	Seed      uint64
	Switches  []Switch // of Fixed, as Sorted has them
	Weak      bool     // loads may get older values than the newest, as the memory model allows
	Expected  []Step   // of an earlier run that this one is to repeat, or nil
	MostSteps uint64   // 0 means 50 million
}

// Outcome is what a run was.
type Outcome struct {
	Steps        uint64
	Digest       uint64 // of all steps
	Switches     []Switch
	More         bool     // there were more switches than are kept
	Ended        string   // why it was ended early, or ""
	Diverged     string   // where it differs from Plan.Expected, or ""
	Uncontrolled []string // sentences on what took part without a turn

	Trace []Step `json:"-"` // the first 4 million
}

// Sorted returns switches as a [Plan] has them.
func Sorted(switches []Switch) []Switch {
	sorted := slices.Clone(switches)
	slices.SortFunc(sorted, func(a, b Switch) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Count, b.Count), cmp.Compare(a.Age, b.Age))
	})
	return sorted
}

// Explorer is the run of this process.
type Explorer struct {
	engine unsafe.Pointer
	fixed  bool     // Plan.Scheduler is Fixed
	arena  *os.File // of what is known of the order of accesses, if memory is weak
	dir    string   // of the run that the environment asks for
	ranks  int

	mu           sync.Mutex
	hosts        map[uint64]*Party // and proxies, by their goroutines
	uncontrolled []string
	codes        []code
	groups       int // that run
	ran          int // and have run
	meetings     map[string]*meeting
	messages     map[string]*mail
	expected     *C.explore_step
	switches     *C.explore_switch

	working sync.WaitGroup // streams that take part
	slow    atomic.Int32   // calls under way that take long
}

// code is a loaded module.
type code struct {
	base  uint64
	place func(address uint64) string
}

// The explorer is one for the process.
var current atomic.Pointer[Explorer]

// Current returns the explorer, or nil if there is none.
func Current() *Explorer { return current.Load() }

const mostSteps = 50_000_000

// Begin begins a run in this process. No device is open.
func Begin(p Plan) (*Explorer, error) {
	if current.Load() != nil {
		return nil, errors.New("schedules are explored in this process already")
	}
	scheduler, ok := p.Scheduler.number()
	if !ok {
		return nil, fmt.Errorf("there is no scheduler %q", p.Scheduler)
	}
	x := &Explorer{fixed: p.Scheduler == Fixed, hosts: map[uint64]*Party{}, meetings: map[string]*meeting{}, messages: map[string]*mail{}}
	plan := C.explore_plan{seed: C.uint64_t(p.Seed), scheduler: scheduler, most: C.uint64_t(p.MostSteps)}
	if plan.most == 0 {
		plan.most = mostSteps
	}
	if n := len(p.Switches); n > 0 {
		x.switches = (*C.explore_switch)(C.calloc(C.size_t(n), C.sizeof_explore_switch))
		for i, s := range p.Switches {
			unsafe.Slice(x.switches, n)[i] = C.explore_switch{from: C.explore_who(s.From), to: C.explore_who(s.To), count: C.uint64_t(s.Count), age: C.uint32_t(s.Age)}
		}
		plan.switches, plan.switch_count = x.switches, C.uint64_t(n)
	}
	if n := len(p.Expected); n > 0 {
		x.expected = (*C.explore_step)(C.calloc(C.size_t(n), C.sizeof_explore_step))
		copy(unsafe.Slice((*Step)(unsafe.Pointer(x.expected)), n), p.Expected)
		plan.expected, plan.expected_count = x.expected, C.uint64_t(n)
	}
	if C.explore_begin(&plan) == 0 {
		x.free()
		return nil, errors.New("no memory to explore schedules")
	}
	if p.Weak {
		if err := x.weaken(); err != nil {
			C.explore_end()
			x.free()
			return nil, fmt.Errorf("the values of weak memory cannot be known (mscclgo explore -weak=false goes without): %w", err)
		}
	}
	x.engine = unsafe.Pointer(C.explore_functions())
	current.Store(x)
	return x, nil
}

// weaken begins to know the order of accesses, by which loads may get older values.
func (x *Explorer) weaken() error {
	arena, err := race.NewArena()
	if err != nil {
		return err
	}
	if err = race.Begin(arena, race.Memory()); err == nil {
		if err = race.Weaken(); err == nil {
			x.arena = arena
			return nil
		}
		race.End()
	}
	arena.Close()
	return err
}

func (x *Explorer) free() {
	C.free(unsafe.Pointer(x.switches))
	C.free(unsafe.Pointer(x.expected))
}

// Outcome returns what the run was, after its groups have ended.
func (x *Explorer) Outcome() Outcome {
	r := C.explore_result()
	o := Outcome{
		Steps: uint64(r.steps), Digest: uint64(r.digest), Ended: C.GoString(&r.text[0]),
		More:  r.switch_count == C.EXPLORE_SWITCHES,
		Trace: bytesOf[Step](unsafe.Pointer(r.trace), int(r.kept)),
	}
	for _, s := range unsafe.Slice(r.switches, int(r.switch_count)) {
		o.Switches = append(o.Switches, Switch{From: Who(s.from), Count: uint64(s.count), To: Who(s.to), Age: uint32(s.age)})
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	told := 0
	if o.Ended != "" || x.fixed {
		told = mostTold
	}
	for _, old := range []bool{true, false} {
		for i := range o.Switches {
			s := unsafe.Slice(r.switches, int(r.switch_count))[i]
			if told == 0 || old != (s.age > 0) {
				continue
			}
			told--
			at := x.at(Who(s.from), uint32(s.point), uint64(uintptr(s.code)))
			if old {
				of := race.Old{Reader: uint32(s.of.reader), Writer: uint32(s.of.writer), Place: uint32(s.of.place)}
				o.Switches[i].Text = fmt.Sprintf("%s gets an old value, %s", at, of.Words())
			} else {
				o.Switches[i].Text = fmt.Sprintf("%s goes on instead of %s", x.words(Who(s.to)), at)
			}
		}
	}
	if r.diverged != 0 {
		o.Ended = ""
		o.Diverged = fmt.Sprintf("at step %d %s", uint64(r.at), x.at(Who(r.did.who), uint32(r.did.point), uint64(uintptr(r.code))))
		if r.did.who == 0 {
			o.Diverged = fmt.Sprintf("it ended at step %d", uint64(r.at))
		}
		was := x.at(Who(r.expected.who), uint32(r.expected.point), 0)
		if r.expected.who == 0 {
			was = "nobody, as the run had ended"
		} else if r.expected.who == r.did.who && r.expected.point == r.did.point {
			was = "the same elsewhere"
		}
		o.Diverged += ", where it was " + was
	}
	o.Uncontrolled = x.uncontrolled
	return o
}

// mostTold is how many switches are described, of a run that has failed or has its switches told:
// looking their lines up takes longer than a short run.
const mostTold = 256

func bytesOf[T any](p unsafe.Pointer, n int) []T {
	return append([]T(nil), unsafe.Slice((*T)(p), n)...)
}

// End ends the run. No device is open.
func (x *Explorer) End() {
	current.Store(nil)
	x.working.Wait() // the last to end may still have the turn
	C.explore_end()
	x.free()
	if x.arena != nil {
		race.End()
		x.arena.Close()
	}
}

// Engine returns the functions for kernels, an explore_engine of engine.h.
func (x *Explorer) Engine() unsafe.Pointer { return x.engine }

// Over reports whether the run was ended early: then nobody waits for turns any more.
func (x *Explorer) Over() bool { return C.explore_is_over() != 0 }

// over ends the run early.
func (x *Explorer) over(why string) {
	text := C.CString(why)
	C.explore_over(text)
	C.free(unsafe.Pointer(text))
}

// Uncontrolled notes something that takes part without a turn.
func (x *Explorer) Uncontrolled(sentence string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.uncontrolled {
		if s == sentence {
			return
		}
	}
	x.uncontrolled = append(x.uncontrolled, sentence)
}

// Outside notes something that writes memory, or launches what does, without a turn. Whoever waits
// then may wait for that, and looks again after a while before the run is given up.
func (x *Explorer) Outside(sentence string) {
	C.explore_outside()
	x.Uncontrolled(sentence)
}

// Slow tells the explorer of this process, if there is one, that the caller does something that may
// take minutes without a step, until the function that it returns is called.
func Slow() (done func()) {
	x := Current()
	if x == nil {
		return func() {}
	}
	x.slow.Add(1)
	return func() { x.slow.Add(-1) }
}

// AddModule makes the lines of a module known, which begins at base.
func (x *Explorer) AddModule(base uint64, place func(address uint64) string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.codes = append(x.codes, code{base, place})
}

// Party is a goroutine that takes part: a rank's, a proxy's, or a stream's.
type Party struct {
	x       *Explorer
	c       *C.explore_party
	rank    int
	numbers *numbers
	polled  bool // last, and did nothing else since that is known
	entered bool // of a proxy: its goroutine is known
	looks   bool // see Looking
}

// numbers counts the parties of a rank.
type numbers struct{ streams, proxies uint32 }

// Self returns the calling goroutine's party, if it is a rank's or a proxy's, and nil if it is
// neither or the explorer is nil.
func (x *Explorer) Self() *Party {
	if x == nil || x.Over() {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.hosts[goroutine()]
}

// goroutine returns the calling goroutine's number.
func goroutine() uint64 {
	var text [64]byte
	fields := bytes.Fields(text[:runtime.Stack(text[:], false)])
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.ParseUint(string(fields[1]), 10, 64)
	return n
}

// place is the number of a call of the host.
func place(what string) C.uint32_t {
	h := fnv.New32a()
	h.Write([]byte(what))
	return C.uint32_t(h.Sum32())
}

// Step is where another may have the turn instead. A nil party does nothing.
func (p *Party) Step(what string) {
	if p != nil {
		p.polled = false
		C.explore_step_of(p.c, C.EXPLORE_HOST, place(what))
	}
}

// Poll is where a party that asks again and again has others go on first.
func (p *Party) Poll(what string) {
	if p != nil && !p.looks {
		if !p.polled {
			p.Event() // the caller may have written memory
		}
		p.polled = true
		C.explore_waits(p.c, place(what), 2)
	}
}

// Operation is where another may have the turn before a stream's next operation.
func (p *Party) Operation() { C.explore_step_of(p.c, C.EXPLORE_STEP, 0) }

// Until gives the turn away until done returns true, which depends on what is done in turns, or
// on memory if memory is true. It returns early if the run is over.
func (p *Party) Until(what string, memory bool, done func() bool) {
	if p == nil || done() {
		return
	}
	p.polled = false
	p.Event() // the caller may have written memory; once, so that two that wait do not wake each other for ever
	with := C.int(0)
	if memory {
		with = 1
	}
	for !done() && !p.x.Over() {
		C.explore_waits(p.c, place(what), with)
	}
}

// Event tells that what a party waits for may have happened.
func (p *Party) Event() {
	if p != nil {
		C.explore_event()
	}
}

// Stream returns the party of a new stream, to be used first by a rank's goroutine or a proxy's.
func (p *Party) Stream() *Party {
	c := C.explore_join_stream(C.uint32_t(p.rank), C.uint32_t(p.numbers.streams))
	p.numbers.streams++
	return &Party{x: p.x, c: c, rank: p.rank}
}

// Pointer returns the party for C, an explore_party.
func (p *Party) Pointer() unsafe.Pointer { return unsafe.Pointer(p.c) }

// Of reports whether the party is of this run.
func (p *Party) Of(x *Explorer) bool { return p != nil && p.x == x }

// Wake has a stream take part, as it has work. Await is called by what does the work, before
// it does any, and Rest when there is none left. [Explorer.End] waits for Rest.
func (p *Party) Wake() {
	p.x.working.Add(1)
	C.explore_wake(p.c)
}
func (p *Party) Await() { C.explore_await(p.c) }
func (p *Party) Rest() {
	defer p.x.working.Done()
	C.explore_rest(p.c)
}

// Group is the goroutines of ranks that take part.
type Group struct {
	x       *Explorer
	hosts   []*Party
	left    sync.WaitGroup
	arrived sync.WaitGroup
	once    sync.Once
	stop    chan struct{}
}

// Running reports whether a rank's goroutine takes part.
func (x *Explorer) Running() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.hosts) > 0
}

// stuck is how long nothing may be done by whoever has the turn.
const stuck = time.Minute

// mostRanks is the most ranks of a group, by the bits of a Who.
const mostRanks = 256

// Group has n ranks take part: each calls Enter, and then Leave. It returns nil if the
// explorer is nil, already has a group, or n is too high.
func (x *Explorer) Group(n int) *Group {
	if x == nil {
		return nil
	}
	if n > mostRanks {
		x.Outside(fmt.Sprintf("a group of %d ranks, and at most %d can be explored", n, mostRanks))
		return nil
	}
	x.mu.Lock()
	busy := x.groups > 0
	again := x.ran > 0
	if !busy && !again {
		x.groups++
		x.ran++
	}
	x.mu.Unlock()
	switch {
	case busy:
		x.Outside("a second group runs at the same time")
		return nil
	case again:
		x.Uncontrolled("only the first group that the program runs is explored, and it runs another")
		return nil
	}
	x.begun()
	g := &Group{x: x, hosts: make([]*Party, n), stop: make(chan struct{})}
	g.left.Add(n)
	g.arrived.Add(n)
	for rank := range g.hosts {
		g.hosts[rank] = &Party{x: x, c: C.explore_join_host(C.uint32_t(rank)), rank: rank, numbers: &numbers{}}
	}
	go g.watch()
	return g
}

// watch ends the run if whoever has the turn does nothing.
func (g *Group) watch() {
	last, since := uint64(0), time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-tick.C:
		}
		if now := uint64(C.explore_steps()); now != last || g.x.slow.Load() > 0 {
			last, since = now, time.Now()
		} else if time.Since(since) > stuck && !g.x.Over() {
			g.x.over(fmt.Sprintf("nothing was done for %v by whoever had the turn: a rank's goroutine waits for another goroutine by means that are not this library's, or a kernel is in a loop without accesses to memory", stuck))
		}
	}
}

// Enter waits until all ranks have called it and for the rank's first turn. The rank's
// goroutine takes part until Leave.
func (g *Group) Enter(rank int) {
	if g == nil {
		return
	}
	p := g.hosts[rank]
	g.x.mu.Lock()
	g.x.hosts[goroutine()] = p
	g.x.mu.Unlock()
	g.arrived.Done()
	g.arrived.Wait()
	g.once.Do(func() { C.explore_start() })
	p.Await()
}

// Leave ends a rank's part, with what its function returned, and waits until all ranks and what
// they have queued have ended, or the run is over, as it is if one failed.
func (g *Group) Leave(rank int, err error) {
	if g == nil {
		return
	}
	p := g.hosts[rank]
	g.x.mu.Lock()
	delete(g.x.hosts, goroutine())
	g.x.mu.Unlock()
	if err != nil {
		g.x.over(fmt.Sprintf("rank %d: %v", rank, err))
	} else {
		C.explore_rest(p.c)
	}
	for !g.x.Over() && C.explore_idle() == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	g.left.Done()
}

// Missing is called instead of Enter and Leave by a rank that could not begin.
func (g *Group) Missing(rank int, err error) {
	if g == nil {
		return
	}
	g.x.over(fmt.Sprintf("rank %d: %v", rank, err))
	g.arrived.Done()
	g.left.Done()
}

// End is called when all ranks have left.
func (g *Group) End() {
	if g == nil {
		return
	}
	g.left.Wait()
	close(g.stop)
	g.x.mu.Lock()
	g.x.groups--
	g.x.mu.Unlock()
	g.x.write()
}
