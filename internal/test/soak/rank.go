package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
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
	Cover     bool // the steps are all calls, so that all that there is gets compiled
}

// report is a line that a rank prints.
type report struct {
	Event string // "fault" before the victim commits it, "closing" when all is done, "end"
	Time  int64  // Unix nanoseconds
	Text  string // of the error, for "end"
	Kind  string
	Peer  int      // that the error names
	Wrong uint64   // elements
	Steps int      // that are done
	Left  []string // what the rank has not released, though all is closed
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
	w := &worker{task: t, cancel: cancel}
	if t.Fault == "few descriptors" {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: fewDescriptors, Max: fewDescriptors}); err != nil {
			panic(err)
		}
	}
	before := takeStock()
	err := communicator.Run(ctx, communicator.Options{Device: t.Device, Timeout: t.Timeout, HeartbeatTimeout: t.Heartbeat, Scratch: 1 << 20}, w.run)
	end := report{Event: "end", Wrong: w.wrong, Steps: w.done, Peer: mscclgo.NoRank}
	if err != nil {
		end.Text = err.Error()
		var e *mscclgo.Error
		if errors.As(err, &e) {
			end.Kind, end.Peer = fmt.Sprint(e.Kind), e.Peer
		}
		end.Time = w.failedAt
	}
	if end.Time == 0 {
		end.Time = time.Now().UnixNano()
	}
	end.Left = before.left(t.Device)
	say(end)
}

// worker is what a rank works with.
type worker struct {
	task
	cancel   context.CancelFunc
	comm     *communicator.Communicator
	stream   *gpu.Stream
	kernels  map[string]*gpu.Kernel
	in, out  *gpu.Buffer // of calls
	inbox    *gpu.Buffer // of channels
	runner   *collective.Runner
	calls    []call
	memory   *communicator.MemoryChannels
	ports    *communicator.PortChannels
	service  *proxyservice.ProxyService
	closers  []func() error
	faulty   atomic.Bool // the handler is to fail
	wrong    uint64
	done     int
	failedAt int64
}

// run does the steps of the task. Which they are depends on the seed alone.
func (w *worker) run(ctx context.Context, comm *communicator.Communicator) (err error) {
	w.comm = comm
	// What a rank does alone, such as to compile, ends with the group.
	within, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		select {
		case <-comm.Done():
			leave()
		case <-within.Done():
		}
	}()
	if err = w.steps(within); err != nil && comm.Err() != nil && ctx.Err() == nil && (errors.Is(err, context.Canceled) || errors.Is(err, mscclgo.ErrAborted)) {
		err = comm.Err()
	}
	if err != nil {
		w.failedAt = time.Now().UnixNano()
		comm.Abort(err)
	} else {
		say(report{Event: "closing"})
	}
	for _, c := range slices.Backward(w.closers) {
		err = errors.Join(err, c())
	}
	return err
}

func (w *worker) steps(ctx context.Context) error {
	if err := w.prepare(ctx); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(w.Seed, 7))
	var fit []call
	for _, c := range calls {
		if w.fits(c) {
			fit = append(fit, c)
		}
	}
	for range 3 {
		w.calls = append(w.calls, fit[random.IntN(len(fit))])
	}
	for step := range w.Steps {
		if err := w.step(ctx, random, step); err != nil {
			return err
		}
		w.done++
	}
	return w.comm.Barrier(ctx)
}

// closing has what was made without an error closed at the end.
func (w *worker) closing(c io.Closer) { w.closers = append(w.closers, c.Close) }

func (w *worker) prepare(ctx context.Context) error {
	dev := w.comm.Device()
	module, err := devicecode.Load(ctx, dev, "soak.cu", source, devicecode.Options{})
	if err != nil {
		return err
	}
	w.closing(module)
	w.kernels = map[string]*gpu.Kernel{}
	for _, name := range []string{"shift", "portShift", "report", "wrong"} {
		if w.kernels[name], err = module.Kernel(name); err != nil {
			return err
		}
	}
	if w.stream, err = dev.NewStream(); err != nil {
		return err
	}
	w.closing(w.stream)
	size := 8 * counts[len(counts)-1] * uint64(w.comm.Size())
	for b, size := range map[**gpu.Buffer]uint64{&w.in: size, &w.out: size, &w.inbox: 2 * slots * slotSize} {
		if *b, err = dev.Alloc(size); err != nil {
			return err
		}
		w.closing(*b)
	}
	if w.runner, err = collective.New(ctx, w.comm, collective.Options{}); err != nil {
		return err
	}
	w.closers = append(w.closers, func() error { return w.runner.Close(ctx) })
	if w.memory, err = w.comm.MemoryChannels(ctx, w.inbox, communicator.MemoryChannelOptions{SameHost: true}); err != nil {
		return err
	}
	w.closing(w.memory)
	if w.service, err = w.comm.ProxyService(ctx, proxyservice.ServiceOptions{Handler: w.handle}); err != nil {
		return err
	}
	w.closing(w.service)
	if w.ports, err = w.comm.PortChannels(ctx, w.service, w.inbox, communicator.PortChannelOptions{}); err != nil {
		return err
	}
	w.closing(w.ports)
	return nil
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

// step does one step, on the victim with its fault where it is the one.
func (w *worker) step(ctx context.Context, random *rand.Rand, step int) error {
	kind, call, count := random.IntN(6), w.calls[random.IntN(len(w.calls))], counts[random.IntN(len(counts))]
	root := random.IntN(w.comm.Size())
	fault := ""
	if w.Victim == w.comm.Rank() && step == w.At {
		fault = w.Fault
	}
	switch { // the step has what the fault needs, on all ranks
	case w.Cover:
		kind, call, count = 0, calls[step/len(counts)], counts[step%len(counts)]
		if !w.fits(call) {
			return nil
		}
	case w.Fault == "no signal" && step == w.At:
		kind = 4
		if len(w.comm.Hosts()) == 1 {
			kind -= random.IntN(2)
		}
	case w.Fault == "other call" && step == w.At:
		kind = 0
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
	case "no signal", "other call":
		say(report{Event: "fault"})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch kind {
	case 0, 1, 2:
		if fault == "other call" {
			count++
		}
		return w.collective(ctx, call, count, root, step)
	case 3:
		return w.shift(ctx, "shift", w.memory.Handles, w.memory.Ranks, step, fault == "no signal")
	case 4:
		return w.shift(ctx, "portShift", w.ports.Handles, nil, step, fault == "no signal")
	}
	return w.launch(ctx, "report", w.service.Fifo(), uint32(step))
}

// launch runs a kernel to its end.
func (w *worker) launch(ctx context.Context, kernel string, args ...any) error {
	if err := w.kernels[kernel].Launch(w.stream, gpu.Blocks(1, 1), args...); err != nil {
		return err
	}
	return w.comm.Synchronize(ctx, w.stream)
}
