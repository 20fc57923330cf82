package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/launcher"
)

// footprint is what this process holds.
type footprint struct {
	heap, resident uint64 // bytes
	free           uint64 // bytes of a device
	files          int
}

// status reads sizes in bytes from /proc/self/status; see proc(5).
func status(names ...string) (sum uint64, err error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		for _, name := range names {
			var kib uint64
			if _, err := fmt.Sscanf(line, name+": %d kB", &kib); err == nil {
				sum += kib << 10
			}
		}
	}
	return sum, nil
}

func takeFootprint(d *gpu.Device) (f footprint, err error) {
	runtime.GC() // two of them empty a sync.Pool
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.heap = m.HeapAlloc
	if f.resident, err = status("VmRSS"); err != nil {
		return f, err
	}
	if f.free, _, err = d.MemoryInfo(); err != nil {
		return f, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	f.files = len(files)
	return f, err
}

// grown returns an error if f is more than before by more than what comes and goes. For
// a million calls the bounds are 2 and 8 bytes a call: less than one could keep.
func (f footprint) grown(before footprint) error {
	const heap, resident, device, files = 2 << 20, 8 << 20, 4 << 20, 4
	if f.heap > before.heap+heap || f.resident > before.resident+resident || f.free+device < before.free || f.files > before.files+files {
		return fmt.Errorf("it grew: from %+v to %+v", before, f)
	}
	return nil
}

// TestManyCalls shows that nothing grows with the number of calls: thousands on
// an emulated device, a million on a GPU or as many as there is time for.
func TestManyCalls(t *testing.T) {
	calls, limit := 4000, 10*time.Second
	if testdev.CUDA() {
		calls, limit = 1_000_000, 90*time.Second
	}
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		done, err := manyCalls(ctx, comm, calls, limit)
		if comm.Rank() == 0 {
			t.Logf("%d calls", done)
		}
		return err
	})
}

// callsAtOnce is how many calls the ranks make before they look at the clock
// together.
const callsAtOnce = 500

// reducers are the algorithms that take turns; the ring's service does not grow either,
// but is slow.
var reducers = []string{"oneShotLL8", "oneShotLL16", "oneShotLL128", "twoShotLL16", "twoShotLL128", "direct"}

func manyCalls(ctx context.Context, comm *communicator.Communicator, calls int, limit time.Duration) (done int, err error) {
	runner, err := collective.New(ctx, comm, collective.Options{})
	if err != nil {
		return 0, err
	}
	stream, err := comm.Device().NewStream()
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			comm.Abort(err)
		}
		err = errors.Join(err, stream.Close(), runner.Close(ctx))
	}()
	ops, err := prepareAll(ctx, comm, runner)
	if err != nil {
		return 0, err
	}
	some := func() error {
		for i := range callsAtOnce {
			if err := ops[i%len(ops)].Launch(stream); err != nil {
				return err
			}
		}
		if err := comm.Synchronize(ctx, stream); err != nil {
			return err
		}
		return comm.Barrier(ctx)
	}
	if err := some(); err != nil { // what is made once
		return 0, err
	}
	var before footprint
	if comm.Rank() == 0 {
		if before, err = takeFootprint(comm.Device()); err != nil {
			return 0, err
		}
	}
	for start, more := time.Now(), []byte{1}; done < calls && more[0] == 1; {
		if err := some(); err != nil {
			return done, err
		}
		done += callsAtOnce
		if time.Since(start) > limit {
			more[0] = 0
		}
		if more, err = comm.Broadcast(ctx, 0, more); err != nil {
			return done, err
		}
	}
	if comm.Rank() != 0 {
		return done, comm.Barrier(ctx)
	}
	after, err := takeFootprint(comm.Device())
	if err == nil {
		err = after.grown(before)
	}
	return done, errors.Join(err, comm.Barrier(ctx))
}

// prepareAll makes an all-reduce of 64 bytes by each algorithm ready.
func prepareAll(ctx context.Context, comm *communicator.Communicator, runner *collective.Runner) ([]*collective.Operation, error) {
	call := collective.Call{Kind: collective.AllReduce, Count: 16}
	for _, m := range []**collective.Memory{&call.In, &call.Out} {
		b, err := gpu.Upload(comm.Device(), make([]byte, 64))
		if err != nil {
			return nil, err
		}
		if *m, err = runner.Share(ctx, b); err != nil {
			return nil, err
		}
	}
	var ops []*collective.Operation
	for _, name := range reducers {
		call.Choice = collective.Choice{Algorithm: name, Blocks: 1, Threads: 32}
		op, err := runner.Prepare(ctx, call)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// memoryEnv makes the test's program a rank of TestHostMemory on a device of
// that kind.
const memoryEnv = "MSCCLGO_TEST_MEMORY"

func TestMain(m *testing.M) {
	if os.Getenv(memoryEnv) != "" {
		os.Exit(memoryOfRank())
	}
	os.Exit(m.Run())
}

// TestHostMemory holds a rank to 64 MiB of host memory beyond the driver's.
func TestHostMemory(t *testing.T) {
	if race {
		t.Skip("the race detector's shadow memory would count")
	}
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	program := testerr.Must(os.Executable())(t)
	var stdout, stderr bytes.Buffer
	for range 2 { // the first fills the cache of kernels
		stdout.Reset()
		if _, err := launcher.Run(t.Context(), launcher.Options{
			Ranks: 2, Program: program, Env: []string{memoryEnv + "=" + kind}, Stdout: &stdout, Stderr: &stderr,
		}); err != nil {
			t.Fatalf("%v\n%s", err, &stderr)
		}
	}
	t.Logf("beyond the driver's:\n%s", &stdout)
}

// memoryOfRank is what a rank of TestHostMemory does.
func memoryOfRank() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := measureMemory(ctx, os.Getenv(memoryEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// reduce all-reduces sizes up to 1 MiB.
func reduce(ctx context.Context, comm *communicator.Communicator) error {
	tuning, err := collective.DefaultTuning()
	if err != nil {
		return err
	}
	_, err = Run(ctx, comm, Config{
		Collectives: []collective.Kind{collective.AllReduce}, Algorithms: []string{"auto"}, Tuning: tuning, Type: "f32", Op: "sum",
		Places: []string{"out"}, Sizes: []uint64{1 << 10, 32 << 10, 1 << 20}, Iters: 5, Replays: 1, Rounds: 1, Check: true,
		Blocks: 4, // the stacks of an emulated device's threads are this process's memory
	}, Sinks{})
	return err
}

func measureMemory(ctx context.Context, kind string) error {
	const most = 64 << 20
	rank, err := strconv.Atoi(os.Getenv("LOCAL_RANK"))
	if err != nil {
		return err
	}
	name, err := gpu.Assign(kind, rank) // as Join will
	if err != nil {
		return err
	}
	d, err := gpu.Open(name)
	if err != nil {
		return err
	}
	// An emulated device's memory is shared memory of this process, and no
	// memory of the host's on a GPU.
	before, err := status("RssAnon", "RssFile")
	if err != nil {
		return err
	}
	comm, err := communicator.Join(ctx, communicator.Options{Device: kind})
	if err != nil {
		return err
	}
	if err := reduce(ctx, comm); err != nil {
		comm.Abort(err)
		return errors.Join(err, comm.Close())
	}
	debug.FreeOSMemory() // what counts is what the rank holds, not when the collector last ran
	after, err := status("RssAnon", "RssFile")
	if err != nil {
		return err
	}
	device, err := status("RssShmem")
	if err != nil {
		return err
	}
	fmt.Printf("rank %d: %.1f MiB, and %.1f MiB of shared memory\n", comm.Rank(), float64(after-before)/(1<<20), float64(device)/(1<<20))
	if after > before+most {
		return errors.Join(fmt.Errorf("rank %d: %d bytes of host memory, %d more than before; at most %d are allowed", comm.Rank(), after, after-before, most), comm.Close())
	}
	return errors.Join(comm.Close(), d.Close())
}
