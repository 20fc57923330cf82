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

// task is what all ranks of a run are told.
type task struct {
	Seed    uint64
	Steps   int
	Fault   string
	Victim  int
	At      int // the step of the fault, where the victim commits it itself
	Timeout time.Duration
}

// report is a line that a rank prints.
type report struct {
	Event string // "fault" before the victim commits it, "closing" when all is done, "end"
	Time  int64  // Unix nanoseconds
	Text  string // of the error, for "end"
	Kind  string
	Peer  int    // that the error names
	Wrong uint64 // elements
	Steps int    // that are done
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
	err := communicator.Run(ctx, communicator.Options{Device: "emu", Timeout: t.Timeout, Scratch: 1 << 20}, w.run)
	end := report{Event: "end", Wrong: w.wrong, Steps: w.done, Peer: mscclgo.NoRank}
	if err != nil {
		end.Text = err.Error()
		var e *mscclgo.Error
		if errors.As(err, &e) {
			end.Kind, end.Peer = fmt.Sprint(e.Kind), e.Peer
		}
		end.Time = w.failedAt
	}
	say(end)
}

// worker is what a rank works with.
type worker struct {
	task
	cancel   context.CancelFunc
	comm     *communicator.Communicator
	stream   *gpu.Stream
	kernels  map[string]*gpu.Kernel
	in, out  *gpu.Buffer // of collectives
	inbox    *gpu.Buffer // of channels
	runner   *collective.Runner
	memory   *communicator.MemoryChannels
	ports    *communicator.PortChannels
	service  *proxyservice.ProxyService
	closers  []func() error
	faulty   atomic.Bool // the handler is to fail
	wrong    uint64
	done     int
	failedAt int64
}

// most is the most elements of a collective.
const most = 4096

// run does the steps of the task. Which they are depends on the seed alone.
func (w *worker) run(ctx context.Context, comm *communicator.Communicator) (err error) {
	w.comm = comm
	err = w.steps(ctx)
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
	for _, b := range []**gpu.Buffer{&w.in, &w.out, &w.inbox} {
		if *b, err = dev.Alloc(4 * most * uint64(w.comm.Size())); err != nil {
			return err
		}
		w.closing(*b)
	}
	if w.runner, err = collective.New(ctx, w.comm, collective.Options{}); err != nil {
		return err
	}
	w.closers = append(w.closers, func() error { return w.runner.Close(ctx) })
	if w.memory, err = w.comm.MemoryChannels(ctx, w.inbox, communicator.MemoryChannelOptions{}); err != nil {
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
func (w *worker) handle(fifo.Trigger) error {
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
	kind, count := random.IntN(6), 1+random.Uint64N(most)
	fault := ""
	if w.Victim == w.comm.Rank() && step == w.At {
		fault = w.Fault
	}
	switch w.Fault { // the step has what the fault needs, on all ranks
	case "no signal":
		if step == w.At {
			kind = 3 + kind%2
		}
	case "other call":
		if step == w.At {
			kind = 0
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
		return w.launch(ctx, "wrong", w.ports.Handles, w.right())
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
	mute := fault == "no signal"
	switch kind {
	case 0, 1:
		if fault == "other call" {
			count++
		}
		return w.reduce(ctx, count, step)
	case 2:
		if err := w.runner.AllGather(w.stream, w.out, w.in, count, collective.F32); err != nil {
			return err
		}
		return w.comm.Synchronize(ctx, w.stream)
	case 3:
		return w.launch(ctx, "shift", w.memory.Handles, w.right(), w.left(), mute)
	case 4:
		return w.launch(ctx, "portShift", w.ports.Handles, w.right(), w.left(), mute)
	}
	return w.launch(ctx, "report", w.service.Fifo(), uint32(step))
}

func (w *worker) right() uint32 { return uint32((w.comm.Rank() + 1) % w.comm.Size()) }
func (w *worker) left() uint32  { return uint32((w.comm.Rank() + w.comm.Size() - 1) % w.comm.Size()) }

// launch runs a kernel to its end.
func (w *worker) launch(ctx context.Context, kernel string, args ...any) error {
	if err := w.kernels[kernel].Launch(w.stream, gpu.Blocks(1, 1), args...); err != nil {
		return err
	}
	return w.comm.Synchronize(ctx, w.stream)
}

// reduce all-reduces numbers whose sums are exact, and counts the wrong ones if it is
// told that all went well.
func (w *worker) reduce(ctx context.Context, count uint64, step int) error {
	n, ranks := int(count), w.comm.Size()
	mine, sums := make([]float32, n), make([]float32, n)
	for i := range mine {
		mine[i] = float32(step%64 + i%128 + w.comm.Rank())
	}
	if err := gpu.CopyIn(w.in, mine); err != nil {
		return err
	}
	if err := w.runner.AllReduce(w.stream, w.out, w.in, count, collective.F32, collective.Sum); err != nil {
		return err
	}
	if err := w.comm.Synchronize(ctx, w.stream); err != nil {
		return err
	}
	if err := gpu.CopyOut(sums, w.out); err != nil {
		return err
	}
	for i, sum := range sums {
		if sum != float32(ranks*(step%64+i%128)+ranks*(ranks-1)/2) {
			w.wrong++
		}
	}
	return nil
}
