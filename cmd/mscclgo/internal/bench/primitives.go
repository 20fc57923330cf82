package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed primitives.cu
var primitivesSource []byte

// Primitive is the result of timing a primitive.
type Primitive struct {
	Stage    string  `json:"stage"` // "primitive"
	Name     string  `json:"name"`
	Bytes    uint64  `json:"bytes,omitempty"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Device   string  `json:"device"`
	Emulated bool    `json:"emulated"`
}

// primitives is one rank's state. Ranks above 1 take part only in collective calls.
type primitives struct {
	comm    *communicator.Communicator
	sinks   Sinks
	library string // the file of NCCL, or "" to search
	module  *gpu.Module
	stream  *gpu.Stream
	took    *gpu.Buffer
	rounds  int
	closers []func() error
}

// largestPut is the largest put that is timed, in bytes; on an emulated device, a
// small one.
func (t *primitives) largestPut() uint64 {
	if emulated(t.comm) {
		return 64 << 10
	}
	return 128 << 20
}

// Primitives times semaphores, packets, port channels, pipes and the ring of triggers
// between ranks 0 and 1, and all-reduces by rings of pipes between all ranks, beside the rings of
// NCCL's ring if its library, a file or "" to search, can be used. It prints rank 0's results.
// Collective.
//
// Errors: for groups of one rank, and of several hosts; also the errors that [Stuck] reports.
func Primitives(ctx context.Context, comm *communicator.Communicator, library string, sinks Sinks) (err error) {
	sinks.fill()
	if comm.Size() < 2 || len(comm.Hosts()) > 1 {
		return errors.New("primitives are timed between two ranks of one host")
	}
	t := &primitives{comm: comm, sinks: sinks, library: library, rounds: 1000}
	if emulated(comm) {
		t.rounds = 20
	}
	defer func() {
		if Stuck(err) {
			return
		}
		if err == nil {
			err = comm.Barrier(ctx)
		} else {
			comm.Abort(err)
		}
		for i := len(t.closers) - 1; i >= 0; i-- {
			err = errors.Join(err, t.closers[i]())
		}
	}()
	if t.module, err = devicecode.Load(ctx, comm.Device(), "primitives.cu", primitivesSource, devicecode.Options{}); err != nil {
		return err
	}
	t.closers = append(t.closers, t.module.Close)
	if t.stream, err = comm.Device().NewStream(); err != nil {
		return err
	}
	t.closers = append(t.closers, t.stream.Close)
	if t.took, err = t.alloc(8); err != nil {
		return err
	}
	remark := ""
	if emulated(comm) {
		remark = ": emulated, times mean nothing"
	}
	fmt.Fprintf(sinks.Table, "# primitives, rank 0 on %v (%s)%s\n", comm.Device(), comm.Device().Info().Model, remark)
	for _, part := range []func(context.Context) error{t.memoryChannels, t.portChannels, t.pipes, t.rings, t.ring} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *primitives) alloc(bytes uint64) (*gpu.Buffer, error) {
	b, err := gpu.Upload(t.comm.Device(), make([]byte, bytes))
	if err == nil {
		t.closers = append(t.closers, b.Close)
	}
	return b, err
}

// report prints a result on rank 0.
func (t *primitives) report(name string, bytes uint64, value float64, unit string) error {
	if t.comm.Rank() != 0 {
		return nil
	}
	size := ""
	if bytes > 0 {
		size = bytesize.Format(bytes)
	}
	fmt.Fprintf(t.sinks.Table, "%-40s %6s %12.2f %s\n", name, size, value, unit)
	return json.NewEncoder(t.sinks.JSON).Encode(Primitive{
		"primitive", name, bytes, value, unit, t.comm.Device().Info().Model, emulated(t.comm),
	})
}

// run launches a kernel of one block, and returns the time of the second launch on this
// rank. The kernel stores it where its last argument points.
func (t *primitives) run(ctx context.Context, name string, ranks, threads int, args func(again int) []any) (time.Duration, error) {
	err := t.launch(ctx, name, ranks, gpu.Blocks(1, threads), func(again int) []any { return append(args(again), t.took) })
	if err != nil {
		return 0, err
	}
	took := make([]uint64, 1)
	err = gpu.CopyOut(took, t.took)
	return time.Duration(took[0]), err
}

// launch launches a kernel on each of the first `ranks` ranks, twice, and waits for it.
func (t *primitives) launch(ctx context.Context, name string, ranks int, config gpu.LaunchConfig, args func(again int) []any) error {
	kernel, err := t.module.Kernel(name)
	if err != nil {
		return err
	}
	for again := range 2 {
		if err := t.comm.Barrier(ctx); err != nil {
			return err
		}
		if t.comm.Rank() >= ranks {
			continue
		}
		if err := kernel.Launch(t.stream, config, args(again)...); err != nil {
			return err
		}
		if err := t.comm.Synchronize(ctx, t.stream); err != nil {
			return err
		}
	}
	return nil
}

// memoryChannels times signals and packets.
func (t *primitives) memoryChannels(ctx context.Context) error {
	local, err := t.alloc(512)
	if err != nil {
		return err
	}
	for _, way := range []struct {
		kernel, name string
		threads      int
		flagged      bool
	}{
		{"semaphores", "semaphore", 1, false}, {"relaxedSemaphores", "relaxed semaphore", 1, false},
		{"LL8", "LL8 packet", 1, true}, {"LL16", "LL16 packet", 1, true}, {"LL128", "LL128 packet", 32, true},
	} {
		inbox, err := t.alloc(512) // zeroed
		if err != nil {
			return err
		}
		channels, err := t.comm.MemoryChannels(ctx, local, communicator.MemoryChannelOptions{Inbox: inbox})
		if err != nil {
			return err
		}
		t.closers = append(t.closers, channels.Close)
		took, err := t.run(ctx, way.kernel, 2, way.threads, func(again int) []any {
			args := []any{channels.HandleOf(0, max(1-t.comm.Rank(), 0)), uint32(t.comm.Rank()), uint32(t.rounds)}
			if way.flagged {
				args = append(args, uint32(1+again*t.rounds))
			}
			return args
		})
		if err != nil {
			return err
		}
		if err := t.report(way.name+", round trip", 0, micros(took)/float64(t.rounds), "us"); err != nil {
			return err
		}
	}
	return nil
}

// portChannels times puts through the host.
func (t *primitives) portChannels(ctx context.Context) error {
	memory, err := t.comm.Device().Alloc(t.largestPut())
	if err != nil {
		return err
	}
	t.closers = append(t.closers, memory.Close)
	service, err := t.comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	t.closers = append(t.closers, service.Close)
	channels, err := t.comm.PortChannels(ctx, service, memory, communicator.PortChannelOptions{})
	if err != nil {
		return err
	}
	t.closers = append(t.closers, channels.Close)
	handle := channels.HandleOf(0, max(1-t.comm.Rank(), 0))
	for _, bytes := range []uint64{8, 1 << 10, 64 << 10} {
		took, err := t.run(ctx, "ports", 2, 1, func(int) []any {
			return []any{handle, uint32(t.comm.Rank()), bytes, uint32(t.rounds)}
		})
		if err != nil {
			return err
		}
		if err := t.report("port channel, put and signal, round trip", bytes, micros(took)/float64(t.rounds), "us"); err != nil {
			return err
		}
	}
	for bytes := uint64(1 << 10); bytes <= t.largestPut(); bytes *= 4 {
		rounds := max(4, min(t.rounds, int((1<<30)/bytes)))
		took, err := t.run(ctx, "putMany", 1, 1, func(int) []any { return []any{handle, bytes, uint32(rounds)} })
		if err != nil {
			return err
		}
		if err := t.report("port channel, puts", bytes, float64(bytes)*float64(rounds)/float64(max(took, 1)), "GB/s"); err != nil {
			return err
		}
	}
	return nil
}

// ring times the triggers that rank 0's kernels push to a goroutine.
func (t *primitives) ring(ctx context.Context) error {
	group, err := t.comm.HostGroup(ctx)
	if err != nil || t.comm.Rank() != 0 {
		return err
	}
	for _, way := range []struct {
		producers int
		sync      bool
	}{{1, true}, {1, false}, {8, false}, {32, false}, {64, false}, {128, false}} {
		took, err := t.push(ctx, devicecode.Watch(group.Internal().Watch), way.producers, way.sync)
		if err != nil {
			return err
		}
		name, value, unit := fmt.Sprintf("ring of 512, %d pushing", way.producers), float64(way.producers*t.rounds)/micros(max(took, 1)), "M/s"
		if way.sync {
			name, value, unit = "ring of 512, push and sync", micros(took)/float64(t.rounds), "us"
		}
		if err := t.report(name, 0, value, unit); err != nil {
			return err
		}
	}
	return nil
}

// push times a number of blocks that push triggers, which a goroutine pops.
func (t *primitives) push(ctx context.Context, watch devicecode.Watch, producers int, sync bool) (time.Duration, error) {
	ring, err := fifo.New(t.comm.Device(), fifo.Options{Size: 512, Watch: watch})
	if err != nil {
		return 0, err
	}
	stop, stopped := context.WithCancel(ctx)
	taken := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		batch := make([]fifo.Trigger, 64)
		for polls := 1; ; polls++ {
			if n := ring.PollBatch(batch); n > 0 {
				if err := ring.Pop(n); err != nil {
					taken <- err
					return
				}
			} else if polls%1024 == 0 && stop.Err() != nil {
				taken <- nil
				return
			}
		}
	}()
	kernel, err := t.module.Kernel("pushes")
	for range 2 { // the first touches memory that is new to the device
		if err == nil {
			err = kernel.Launch(t.stream, gpu.Blocks(producers, 1), ring.Handle(), uint32(t.rounds), sync, t.took)
		}
		if err == nil {
			err = t.comm.Synchronize(ctx, t.stream)
		}
	}
	stopped()
	if err := errors.Join(err, <-taken, ring.Close()); err != nil {
		return 0, err
	}
	took := make([]uint64, 1)
	err = gpu.CopyOut(took, t.took)
	return time.Duration(took[0]), err
}
