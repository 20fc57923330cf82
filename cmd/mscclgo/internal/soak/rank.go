package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed soak.cu
var source []byte

// task is what all ranks of a group are told.
type task struct {
	Seed      uint64
	Steps     int
	Fault     string
	Victim    int // none if it is negative
	At        int // the step of the fault, where the victim commits it itself
	Timeout   time.Duration
	Heartbeat time.Duration
	Device    string
	Most      uint64 // bytes of a call's input, output or message
	Short     bool   // few kinds of calls, so that less is compiled
	Elastic   string // the id of a server at which survivors meet and go on, or ""
}

// report is a line that a rank prints.
type report struct {
	Event  string // "fault" before the victim commits it, "closing" when all is done, "end"
	Time   int64  // Unix nanoseconds
	Text   string // of the error, for "end"
	Kind   string
	Peer   int      // that the error names
	Wrong  uint64   // elements
	What   string   // the first step with wrong elements
	Steps  int      // that are done
	Told   int64    // when the rank knew that the group had failed, in Unix nanoseconds, or 0
	Left   []string // what the rank has not released, though all is closed, and threads that ran elsewhere than it may
	Pauses []pause
	Again  string // of a survivor that was to go on with others: "right", or why it was not
}

func say(r report) {
	if r.Time == 0 {
		r.Time = time.Now().UnixNano()
	}
	json.NewEncoder(os.Stdout).Encode(r)
}

// rank runs one rank, and reports how it ended.
func rank(text string) {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &worker{task: t, cancel: cancel, device: func() error { return nil }, astray: func() []string { return nil }}
	if t.Fault == "few descriptors" {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: fewDescriptors, Max: fewDescriptors}); err != nil {
			panic(err)
		}
	}
	if err := w.bound(); err != nil {
		panic(err)
	}
	go w.pauses.watch(ctx)
	if strings.HasPrefix(t.Device, "cuda") {
		w.pauses.alone(func() { openDriver(t.Device) })
	}
	before := takeStock()
	end := report{Event: "end"}
	if err := t.keepFromForming(); err != nil {
		panic(err)
	}
	var err error
	if t.Elastic != "" {
		end.Again, err = w.twice(ctx)
	} else {
		err = communicator.Run(ctx, w.options(), w.run)
	}
	end.Pauses = w.pauses.list()
	end.Wrong, end.What, end.Steps, end.Peer, end.Told = w.wrong, w.firstWrong, w.done, mscclgo.NoRank, w.toldAt.Load()
	if err != nil {
		end.Text = err.Error()
		var e *mscclgo.Error
		if errors.As(err, &e) {
			end.Kind, end.Peer = fmt.Sprint(cmp.Or(w.kind, e.Kind)), e.Peer
		}
		end.Time = w.failedAt
	}
	if end.Time == 0 {
		end.Time = time.Now().UnixNano()
	}
	end.Left = append(w.loose, before.left(t.Device)...)
	say(end)
}

// openDriver opens this rank's GPU, once more than its group does and until the process ends: the driver
// takes seconds for the first time where it is busy, and can neither be interrupted nor told of a failure. An
// error is the group's to find.
func openDriver(name string) {
	local, _ := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if name, err := gpu.Assign(name, local); err == nil {
		gpu.Open(name)
	}
}

func (w *worker) options() communicator.Options {
	o := communicator.Options{Device: w.Device, Timeout: w.Timeout, HeartbeatTimeout: w.Heartbeat, Scratch: 1 << 20}
	if w.Fault != "strangers" && w.Fault != "few descriptors" { // who are refused by the thousand
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return o
}

// worker is what a rank works with.
type worker struct {
	task
	cancel  context.CancelFunc
	comm    *communicator.Communicator
	stream  *gpu.Stream
	kernels map[string]*gpu.Kernel
	graphs  []*gpu.Graph // that may still run
	inbox   inbox
	memory  *communicator.MemoryChannels
	ports   *communicator.PortChannels

	// What a group has until it ends: see leave.
	team, part *team // part is the rank's subgroup
	subgroup   atomic.Pointer[communicator.Communicator]
	pipes      [2]*communicator.Pipes
	pipeMost   [2]uint64
	service    *proxyservice.ProxyService

	shifts, moves int
	sums, given   map[int]uint64 // of the words of trades, by their place
	leavers       []func() error
	closers       []func() error
	astray        func() []string // lists threads that may run where this process may not
	loose         []string        // what it has listed
	device        func() error    // closes one that is this rank's own
	faulty        atomic.Bool     // the handler is to fail
	what          string          // the step under way
	firstWrong    string
	wrong         uint64
	doubtful      uint64 // wrong as well, if the group meets again: see moved
	done          int
	failedAt      int64
	kind          mscclgo.Kind // of the group's error
	toldAt        atomic.Int64
	pauses        pauses
}

// seed returns the one of what a rank puts in a step.
func (w *worker) seed(step, rank int) uint64 {
	return w.Seed + uint64(step)<<32 + uint64(rank)<<16
}

// check counts what is wrong in the step under way.
func (w *worker) check(wrong int) {
	if wrong > 0 && w.wrong+w.doubtful == 0 {
		w.firstWrong = w.what
	}
	w.wrong += uint64(wrong)
}

// checked is check of what is still to be counted, which may take a while.
func (w *worker) checked(wrong func() int) {
	w.pauses.alone(func() { w.check(wrong()) })
}

// moved is check of what channels have moved. Where the program itself signals once too often or too
// seldom, a wait takes a later signal for its own: what it reads counts once the group has met behind it.
func (w *worker) moved(wrong int) {
	w.check(wrong)
	if w.done >= w.At && slices.ContainsFunc(faults, func(f fault) bool { return f.name == w.Fault && f.miscounts }) {
		w.wrong -= uint64(wrong)
		w.doubtful += uint64(wrong)
	}
}

// met notes that the group has met.
func (w *worker) met() { w.wrong, w.doubtful = w.wrong+w.doubtful, 0 }

// run does the steps of the task. Which they are depends on the seed alone.
func (w *worker) run(ctx context.Context, comm *communicator.Communicator) error {
	w.comm = comm
	err := w.work(ctx)
	return errors.Join(err, w.leave(), w.close())
}

// work does the steps, and fails the group where one fails.
func (w *worker) work(ctx context.Context) error {
	comm := w.comm
	// What a rank does alone, such as to compile, ends with the group.
	within, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-comm.Done():
			w.toldAt.Store(time.Now().UnixNano())
			w.failPart(comm.Err()) // before calls there end with the context
			stop()
		case <-within.Done():
		}
	}()
	err := w.steps(within)
	if err == nil {
		w.loose = w.astray()
		say(report{Event: "closing"})
		return nil
	}
	if comm.Err() != nil && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, mscclgo.ErrAborted)) {
		err = comm.Err()
	}
	w.failedAt = time.Now().UnixNano()
	comm.Abort(err)
	if why := comm.Err(); why != nil {
		w.kind = mscclgo.KindOf(why)
		w.failPart(why)
	} else {
		w.failPart(err)
	}
	return err
}

// failPart fails the subgroup, which the group's failure does not, so that nobody waits there for
// this rank. err is why the group has failed.
func (w *worker) failPart(err error) {
	if part := w.subgroup.Load(); part != nil {
		part.Abort(err)
	}
}

// leave ends what does not live on in another group, and close all.
func (w *worker) leave() error {
	if w.stream != nil {
		// Where a wait ended with its context, work is under way.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		w.stream.Synchronize(ctx)
	}
	errs := closeAll(&w.leavers)
	for _, g := range w.graphs {
		errs = errors.Join(errs, g.Close())
	}
	w.graphs = nil
	return errs
}

func (w *worker) close() error { return closeAll(&w.closers) }

func closeAll(closers *[]func() error) (err error) {
	for _, c := range slices.Backward(*closers) {
		err = errors.Join(err, c())
	}
	*closers = nil
	return err
}

func (w *worker) steps(ctx context.Context) error {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	for step := range w.Steps {
		if err := w.step(ctx, step); err != nil {
			return err
		}
		w.done++
	}
	err := w.comm.Barrier(ctx)
	if err == nil {
		w.met()
	}
	return err
}

// closing has something done when the rank ends, and leaving when its group does.
func (w *worker) closing(f func() error) { w.closers = append(w.closers, f) }
func (w *worker) leaving(f func() error) { w.leavers = append(w.leavers, f) }

// prepare makes what the steps use, of which some is there if there was a group before. Collective.
func (w *worker) prepare(ctx context.Context) error {
	dev := w.comm.Device()
	var err error
	if w.kernels == nil {
		module, err := devicecode.Load(ctx, dev, "soak.cu", source, devicecode.Options{})
		if err != nil {
			return err
		}
		w.closing(module.Close)
		w.kernels = map[string]*gpu.Kernel{}
		for _, name := range []string{"shift", "portShift", "trade", "pipeShift", "pipeReduce", "report", "wrong"} {
			if w.kernels[name], err = module.Kernel(name); err != nil {
				return err
			}
		}
	}
	if w.stream == nil {
		if w.stream, err = dev.NewStream(); err != nil {
			return err
		}
		w.closing(w.stream.Close)
	}
	if w.inbox.Buffer == nil {
		if w.inbox, err = newInbox(dev, w.comm.Size(), w.Most); err != nil {
			return err
		}
		w.closing(w.inbox.Close)
	}
	w.shifts, w.moves = 0, 0
	w.sums, w.given = map[int]uint64{}, map[int]uint64{}
	if err := put(w.inbox.Buffer, w.inbox.traded(0), make([]byte, w.inbox.own()-w.inbox.traded(0))); err != nil {
		return err
	}
	if w.memory != nil {
		_, err = w.memory.Reform(ctx, w.comm)
	} else if w.memory, err = w.comm.MemoryChannels(ctx, w.inbox.Buffer, communicator.MemoryChannelOptions{SameHost: true, PerPeer: perPeer}); err == nil {
		w.closing(w.memory.Close)
	}
	if err != nil {
		return err
	}
	if w.service, err = w.comm.ProxyService(ctx, proxyservice.ServiceOptions{Handler: w.handle}); err != nil {
		return err
	}
	service, comm := w.service, w.comm
	if w.ports != nil {
		_, err = w.ports.Reform(ctx, w.comm, w.service)
	} else if w.ports, err = w.comm.PortChannels(ctx, w.service, w.inbox.Buffer, communicator.PortChannelOptions{PerPeer: perPeer}); err == nil {
		w.closing(w.ports.Close)
	}
	if err == nil {
		err = w.newPipes(ctx)
	}
	// Behind a barrier: the services of others may still have to do with this rank's pipes.
	w.leaving(func() error {
		if comm.Err() != nil {
			return nil
		}
		return comm.Barrier(context.Background())
	})
	w.leaving(service.Close)
	if err != nil {
		return err
	}
	if w.team, err = w.newTeam(ctx, w.comm, w.Most, w.Seed); err != nil {
		return err
	}
	return w.split(ctx)
}

// split makes subgroups of random ranks in a random order, of which this rank is in one.
func (w *worker) split(ctx context.Context) error {
	random := rand.New(rand.NewPCG(w.Seed, 3))
	colors, keys := make([]int, w.comm.Size()), random.Perm(w.comm.Size())
	for i := range colors {
		colors[i] = random.IntN(2)
	}
	me := w.comm.Rank()
	w.subgroup.Store(nil)
	comm, err := w.comm.Split(ctx, colors[me], keys[me])
	if err != nil {
		return err
	}
	w.subgroup.Store(comm)
	go w.watchPart(ctx, comm)
	w.leaving(func() error { return w.inPart(comm.Close()) })
	w.part, err = w.newTeam(ctx, comm, w.Most/4, w.Seed+uint64(colors[me]+1)<<60)
	return w.inPart(err)
}

// watchPart fails the group when the subgroup fails, until ctx ends: this rank may be about something
// else, and would find out when it calls there again.
func (w *worker) watchPart(ctx context.Context, part *communicator.Communicator) {
	select {
	case <-part.Done():
		w.inPart(part.Err())
	case <-ctx.Done():
	}
}

// inPart returns the error of something in the subgroup as one of the group: why that has
// failed, or does now, which Abort says by the group's numbers of the ranks. A rank whose end
// fails one fails the other as well, but news may take different ways, and of one that is
// silent each rank hears by itself.
func (w *worker) inPart(err error) error {
	if err == nil {
		return nil
	}
	patience := 100 * time.Millisecond
	if slices.ContainsFunc(faults, func(f fault) bool { return f.name == w.Fault && f.beats }) {
		patience = w.Heartbeat
	}
	select {
	case <-w.comm.Done():
		return w.comm.Err()
	case <-time.After(patience):
	}
	w.comm.Abort(err)
	if why := w.comm.Err(); why != nil {
		return why
	}
	return err // the communicator is closed
}

// handle serves the triggers of the kernel report.
func (w *worker) handle(context.Context, fifo.Trigger) error {
	if !w.faulty.Load() {
		return nil
	}
	switch w.Fault {
	case "handler blocks":
		select {}
	case "handler panics":
		panic("the handler has a bug")
	}
	return errors.New("the handler has found something wrong")
}

// The kinds of steps, some more often than others.
const (
	aCollective = iota
	anExchange
	someMessages
	aShift
	aPortShift
	aTrade
	aPass
	inPart
	aReport
	aGather
)

var kinds = []int{
	aCollective, aCollective, aCollective, aCollective, aCollective, aCollective, anExchange, someMessages, someMessages,
	aShift, aShift, aPortShift, aPortShift, aTrade, aTrade, aPass, aPass, inPart, inPart, aReport, aGather,
}

// step does one step, on the victim with its fault where it is the one. All ranks draw the
// same.
func (w *worker) step(ctx context.Context, step int) error {
	random := rand.New(rand.NewPCG(w.Seed, uint64(100+step)))
	kind := kinds[random.IntN(len(kinds))]
	fault := ""
	if w.Victim == w.comm.Rank() && step == w.At {
		fault = w.Fault
	}
	if step == w.At { // the step has what the fault needs, on all ranks
		switch w.Fault {
		case "no signal", "other grid":
			kind = aPortShift
			if len(w.comm.Hosts()) == 1 && random.IntN(2) == 0 {
				kind = aShift
			}
		case "other call", "no call":
			kind = aCollective
		}
	}
	switch fault {
	case "abort":
		say(report{Event: "fault"})
		w.comm.Abort(errors.New("the victim gives up"))
	case "cancel":
		say(report{Event: "fault"})
		w.cancel()
	case "bad trigger":
		say(report{Event: "fault"})
		return w.launch(ctx, "wrong", w.ports.Handles, uint32((w.comm.Rank()+1)%w.comm.Size()))
	case "handler blocks", "handler panics", "handler fails":
		w.faulty.Store(true)
		say(report{Event: "fault"})
		return w.launch(ctx, "report", w.service.Fifo(), uint32(step))
	case "no signal", "other call", "other grid":
		say(report{Event: "fault"})
	case "no call":
		say(report{Event: "fault"})
		<-ctx.Done() // the group has failed
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if kind == someMessages && !w.team.groups {
		kind = anExchange
	}
	switch kind {
	case aCollective:
		return w.collective(ctx, w.team, random, step, fault == "other call")
	case anExchange:
		return w.exchange(ctx, w.team, random, step)
	case someMessages:
		return w.messages(ctx, w.team, random, step)
	case aShift, aPortShift:
		return w.shift(ctx, kind == aPortShift, random, step, fault == "no signal", fault == "other grid")
	case aTrade:
		return w.trade(ctx, random, step)
	case aPass:
		return w.pass(ctx, w.team, random, step)
	case inPart:
		return w.inPart(w.besides(ctx, step))
	case aGather:
		return w.gather(ctx, random, step)
	}
	w.what = fmt.Sprintf("step %d: a trigger of the user's", step)
	return w.launch(ctx, "report", w.service.Fifo(), uint32(step))
}

// besides makes some calls in the subgroup, beside the other one, which makes others.
func (w *worker) besides(ctx context.Context, step int) error {
	random := rand.New(rand.NewPCG(w.part.seed, uint64(100+step)))
	for range 1 + random.IntN(2) {
		var err error
		switch n := random.IntN(4); {
		case n == 0:
			err = w.exchange(ctx, w.part, random, step)
		case n == 1 && w.part.groups:
			err = w.messages(ctx, w.part, random, step)
		default:
			err = w.collective(ctx, w.part, random, step, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gather gathers bytes of all hosts.
func (w *worker) gather(ctx context.Context, random *rand.Rand, step int) error {
	size := amount(random, 64<<10)
	w.what = fmt.Sprintf("step %d: the hosts gather up to %d bytes", step, size)
	of := func(rank int) []byte { // a function of the step and the rank
		return bytes.Repeat([]byte{byte(w.seed(step, rank)>>16) ^ byte(step)}, int(size)*(rank+1)/w.comm.Size())
	}
	all, err := w.comm.AllGather(ctx, of(w.comm.Rank()))
	if err != nil {
		return err
	}
	w.met()
	for rank, got := range all {
		if !bytes.Equal(got, of(rank)) {
			w.check(1)
		}
	}
	return nil
}

// mismatch reports whether a step is the one in which the victim makes no call, or another.
func (w *worker) mismatch(step int) bool {
	return step == w.At && (w.Fault == "other call" || w.Fault == "no call")
}

// launch runs a kernel to its end.
func (w *worker) launch(ctx context.Context, kernel string, args ...any) error {
	if err := w.kernels[kernel].Launch(w.stream, gpu.Blocks(1, 1), args...); err != nil {
		return err
	}
	return w.synchronize(ctx, w.comm)
}
