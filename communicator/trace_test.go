package communicator_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed trace_test.cu
var traceSource []byte

// trace is a timeline as a reader sees it.
type trace struct {
	Facts struct {
		Ranks []struct {
			Rank    int
			Error   float64 `json:"clock error ns"`
			Kernels int     `json:"events dropped by kernels"`
			Host    int     `json:"events dropped by the host"`
			Failure string
		}
		Arrows       int
		Contradicted int `json:"arrows that the clocks contradict"`
	} `json:"otherData"`
	Entries []*traceEntry `json:"traceEvents"`
	slices  map[string]int
}

type traceEntry struct {
	Phase    string `json:"ph"`
	Name     string
	Cat      string
	Pid, Tid int
	Ts, Dur  float64
	ID       int
	Bind     string `json:"bp"`
	Args     struct {
		Number  float64
		Channel string
		Result  string
		Bytes   float64
		Name    string
		Labels  string
		Ended   *bool
	}
}

// readTrace reads a file and counts the slices by name, without the peers' numbers.
func readTrace(t *testing.T, path string) *trace {
	t.Helper()
	text := testerr.Must(os.ReadFile(path))(t)
	tr := &trace{slices: map[string]int{}}
	if err := json.Unmarshal(text, tr); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, e := range tr.Entries {
		if e.Phase == "X" {
			tr.slices[strings.TrimRight(e.Name, " 0123456789")]++
		}
	}
	return tr
}

// arrows checks all arrows: they begin where a slice does that may end a wait, end in a slice
// that waits for the rank, and do not go back in time by more than the clocks allow. It returns
// how many there are by name.
func (tr *trace) arrows(t *testing.T) map[string]int {
	t.Helper()
	slack := 0.0
	for _, r := range tr.Facts.Ranks {
		slack = max(slack, 2*r.Error/1000)
	}
	const rounding = 0.002 // us
	begins := map[int]*traceEntry{}
	count := map[string]int{}
	for _, e := range tr.Entries {
		if e.Phase == "s" {
			begins[e.ID] = e
		}
	}
	for _, f := range tr.Entries {
		if f.Phase != "f" {
			continue
		}
		count[f.Name]++
		s := begins[f.ID]
		if s == nil {
			t.Errorf("arrow %d has no begin", f.ID)
			continue
		}
		if s.Ts > f.Ts+slack+rounding {
			t.Errorf("arrow %d, %s, goes from %v back to %v, by more than %v", f.ID, f.Name, s.Ts, f.Ts, slack)
		}
		from, to := tr.at(s, true), tr.at(f, false)
		if from == nil || to == nil {
			t.Errorf("arrow %d, %s, leads from %v to %v", f.ID, f.Name, from, to)
			continue
		}
		if f.Name != "signal" {
			continue
		}
		if from.Name != fmt.Sprintf("signal to %d", to.Pid) || to.Name != fmt.Sprintf("wait for %d", from.Pid) || from.Args.Channel != to.Args.Channel ||
			from.Args.Number != 0 && from.Args.Number != to.Args.Number {
			t.Errorf("a signal's arrow leads from %+v to %+v", from, to)
		}
	}
	return count
}

// at returns the slice that an end of an arrow is at: one that begins there, or that ends just
// behind it.
func (tr *trace) at(end *traceEntry, begin bool) *traceEntry {
	for _, e := range tr.Entries {
		if e.Phase != "X" || e.Pid != end.Pid || e.Tid != end.Tid {
			continue
		}
		if begin && e.Ts == end.Ts && e.Cat != "launch" && (strings.Contains(e.Name, "signal") || end.Name != "signal") {
			return e
		}
		if last := e.Ts + e.Dur; !begin && end.Ts >= e.Ts && last >= end.Ts && last-end.Ts < 0.0025 && (strings.HasPrefix(e.Name, "wait") || end.Name != "signal") {
			return e
		}
	}
	return nil
}

// waits returns how many waits of a name's beginning have ended well.
func (tr *trace) waits(name string) int {
	n := 0
	for _, e := range tr.Entries {
		if e.Phase == "X" && strings.HasPrefix(e.Name, name) && e.Args.Result == "done" {
			n++
		}
	}
	return n
}

// everything runs the kernel of this name.
func everything(ctx context.Context, comm *communicator.Communicator, blocks, rounds int, o devicecode.Options) (err error) {
	module, err := devicecode.Load(ctx, comm.Device(), "trace_test.cu", traceSource, o)
	if err != nil {
		return err
	}
	defer module.Close()
	buffer, err := comm.Device().Alloc(64 << 10)
	if err != nil {
		return err
	}
	service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	defer service.Close()
	inbox, err := comm.Device().Alloc(64 << 10)
	if err != nil {
		return err
	}
	memory, err := comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{PerPeer: blocks, Inbox: inbox, Name: "ring"})
	if err != nil {
		return err
	}
	ports, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{})
	if err != nil {
		return err
	}
	group, err := comm.Group(ctx)
	if err != nil {
		return err
	}
	kernel, err := module.Kernel("everything")
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := kernel.Launch(stream, gpu.Blocks(blocks, 64), memory.Set(), ports.Set(), group, uint32(rounds)); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	if err := comm.Barrier(ctx); err != nil {
		return err
	}
	return errors.Join(service.Close(), ports.Close(), memory.Close())
}

// TestTrace records a kernel that uses everything, and finds it in one file with an arrow to
// each wait.
func TestTrace(t *testing.T) {
	const blocks, rounds = 2, 3
	for _, n := range []int{2, 4} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trace.json")
			testgroup.Run(t, n, communicator.Options{Trace: path}, func(ctx context.Context, comm *communicator.Communicator) error {
				return everything(ctx, comm, blocks, rounds, devicecode.Options{Trace: true})
			})
			tr := readTrace(t, path)
			for rank, r := range tr.Facts.Ranks {
				if r.Rank != rank || r.Kernels != 0 || r.Host != 0 || r.Failure != "" {
					t.Errorf("rank %d is %+v", rank, r)
				}
			}
			if len(tr.Facts.Ranks) != n || tr.Facts.Contradicted != 0 {
				t.Errorf("the trace has %d ranks and %d wrong arrows", len(tr.Facts.Ranks), tr.Facts.Contradicted)
			}
			arrows := tr.arrows(t)
			each := n * rounds
			if arrows["signal"] != tr.waits("wait for")-tr.waits("wait for packets") || arrows["signal"] != each*(blocks+2) {
				t.Errorf("%d arrows of signals, %d waits, want %d", arrows["signal"], tr.waits("wait for"), each*(blocks+2))
			}
			want := map[string]int{"packets": each * blocks, "barrier": each * 2 * blocks}
			for name, count := range want {
				if arrows[name] != count {
					t.Errorf("%d arrows of %s, want %d", arrows[name], name, count)
				}
			}
			if tr.slices["everything"] != n || tr.slices["barrier"] != each*2*blocks || tr.slices["write"] < each || tr.slices["atomic"] < each || tr.slices["flush"] == 0 {
				t.Errorf("the slices are %v", tr.slices)
			}
			served := 0
			for name, count := range tr.slices {
				if strings.HasPrefix(name, "serve") {
					served += count
				}
			}
			if served == 0 || arrows["trigger"] != served {
				t.Errorf("%d triggers were served, with %d arrows: %v", served, arrows["trigger"], tr.slices)
			}
		})
	}
}

// TestTraceDrops records more than the rings hold.
func TestTraceDrops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	testgroup.Run(t, 2, communicator.Options{Trace: path, TraceEvents: 50}, func(ctx context.Context, comm *communicator.Communicator) error {
		return everything(ctx, comm, 2, 10, devicecode.Options{Trace: true})
	})
	tr := readTrace(t, path)
	tr.arrows(t)
	for _, r := range tr.Facts.Ranks {
		if r.Kernels == 0 {
			t.Errorf("rank %d has dropped nothing", r.Rank)
		}
	}
	kernels, told := map[int]int{}, 0
	for _, e := range tr.Entries {
		if e.Phase == "X" && (e.Cat == "kernel" || e.Cat == "launch") {
			kernels[e.Pid]++
		}
		if e.Phase == "M" && e.Name == "process_labels" && strings.Contains(e.Args.Labels, "events dropped") {
			told++
		}
	}
	if told != 2 || kernels[0] > 64 || kernels[1] > 64 || kernels[0] < 30 {
		t.Errorf("%d ranks tell of what was dropped, and they have %v events of kernels", told, kernels)
	}
}

// TestTraceOfUntracedKernels has the launches only, and no event of kernels that were not
// compiled for it.
func TestTraceOfUntracedKernels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	testgroup.Run(t, 2, communicator.Options{Trace: path}, func(ctx context.Context, comm *communicator.Communicator) error {
		if _, err := os.Stat(path); err == nil || !os.IsNotExist(err) {
			return fmt.Errorf("the file is there before it is written: %w", err)
		}
		return everything(ctx, comm, 1, 2, devicecode.Options{})
	})
	tr := readTrace(t, path)
	for _, e := range tr.Entries {
		if e.Phase == "X" && e.Cat == "kernel" {
			t.Errorf("a kernel has written %+v", e)
		}
	}
	if tr.slices["everything"] != 2 {
		t.Errorf("the slices are %v", tr.slices)
	}
}

// TestTraceOff writes nothing where kernels were compiled for it and the communicator has no
// timeline.
func TestTraceOff(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		return everything(ctx, comm, 1, 1, devicecode.Options{Trace: true})
	})
}

// TestTraceOfGraph records the launches of a graph, also those after the communicator.
func TestTraceOfGraph(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	d := testdev.Open(t, 0)
	module := testerr.Must(devicecode.Load(t.Context(), d, "none.cu", []byte(`extern "C" __global__ void nothing() {}`), devicecode.Options{}))(t)
	defer module.Close()
	kernel := testerr.Must(module.Kernel("nothing"))(t)
	stream := testerr.Must(d.NewStream())(t)
	defer stream.Close()
	launch := func(g *gpu.Graph) error {
		return errors.Join(g.Launch(stream), stream.Synchronize(t.Context()))
	}
	var graph *gpu.Graph
	testgroup.RunOn(t, []*gpu.Device{d}, communicator.Options{Trace: path}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
		if err := errors.Join(stream.BeginCapture(), kernel.Launch(stream, gpu.Blocks(1, 1))); err != nil {
			return err
		}
		if graph, err = stream.EndCapture(); err != nil {
			return err
		}
		return errors.Join(launch(graph), launch(graph))
	})
	if tr := readTrace(t, path); tr.slices["nothing"] != 2 {
		t.Errorf("the slices are %v", tr.slices)
	}
	testerr.Report(t, errors.Join(launch(graph), graph.Close()))
}

// TestTraceOfFailure has each rank write what it has.
func TestTraceOfFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	comms := group(t, 2, communicator.Options{Trace: path, Timeout: 500 * time.Millisecond})
	errs := outcomes(t, 2, func(rank int) error {
		comm := comms[rank]
		module, err := devicecode.Load(t.Context(), comm.Device(), "trace_test.cu", traceSource, devicecode.Options{Trace: true})
		if err != nil {
			return err
		}
		defer module.Close()
		buffer, err := comm.Device().Alloc(1 << 10)
		if err != nil {
			return err
		}
		memory, err := comm.MemoryChannels(t.Context(), buffer, communicator.MemoryChannelOptions{})
		if err != nil {
			return err
		}
		kernel, err := module.Kernel("awaitNobody")
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		defer stream.Close()
		if err := kernel.Launch(stream, gpu.Blocks(1, 1), memory.Set(), uint32(rank)); err != nil {
			return err
		}
		if rank == 1 {
			<-comm.Done()
		}
		return stream.Synchronize(t.Context())
	})
	for rank, err := range errs {
		if err == nil {
			t.Errorf("rank %d is told of no failure", rank)
		}
		// The file is there when the program is told.
		tr := readTrace(t, fmt.Sprintf("%s.rank%d", path, rank))
		if len(tr.Facts.Ranks) != 1 || tr.Facts.Ranks[0].Rank != rank || tr.Facts.Ranks[0].Failure == "" || tr.slices["awaitNobody"] != 1 {
			t.Errorf("rank %d has written %+v and %v", rank, tr.Facts, tr.slices)
		}
		if rank == 0 && (tr.slices["wait for"] != 1 || tr.waits("wait for") != 0) {
			t.Errorf("the wait that failed is not there: %v", tr.slices)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of the group is there: %v", err)
	}
}

// TestTraceRefused has what is wrong told at the start.
func TestTraceRefused(t *testing.T) {
	good := filepath.Join(t.TempDir(), "trace.json")
	for name, c := range map[string]struct {
		options [2]communicator.Options
		want    string
	}{
		"folder":     {[2]communicator.Options{{Trace: t.TempDir()}, {Trace: good}}, "is a directory"},
		"no folder":  {[2]communicator.Options{{Trace: filepath.Join(t.TempDir(), "none", "trace")}, {Trace: good}}, "no such file"},
		"one rank":   {[2]communicator.Options{{Trace: good}, {}}, "set MSCCLGO_TRACE, or Options.Trace, on all ranks or on none"},
		"few events": {[2]communicator.Options{{Trace: good, TraceEvents: 3}, {Trace: good}}, "TraceEvents is 3, not from 16 to 16777216"},
		"negative":   {[2]communicator.Options{{Trace: good, TraceEvents: -1}, {Trace: good}}, "TraceEvents is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			boots := ranks(t, 2)
			errs := outcomes(t, 2, func(rank int) error {
				comm, err := communicator.New(t.Context(), boots[rank], testdev.Open(t, rank), c.options[rank])
				if err == nil {
					comm.Close()
				}
				return err
			})
			for rank, err := range errs {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("rank %d: %v; want %q", rank, err, c.want)
				}
			}
		})
	}
	t.Setenv("MSCCLGO_TRACE_EVENTS", "many")
	err := communicator.Local(t.Context(), 1, testdev.Name(t, 0), func(context.Context, *communicator.Communicator) error { return nil })
	failing(t, 0, err, mscclgo.ErrInvalid, `MSCCLGO_TRACE_EVENTS is "many", not a number of events from 16 to 16777216`)
}

// TestTraceTogether records, by the environment alone, ranks that are goroutines.
func TestTraceTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	t.Setenv("MSCCLGO_TRACE", file)
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	none := func(context.Context, *communicator.Communicator) error { return nil }
	testerr.Check(t, communicator.RunTogether(t.Context(), devices, communicator.Options{}, none))
	if text, err := os.ReadFile(file); err != nil || !bytes.Contains(text, []byte(`"rank 1`)) {
		t.Errorf("the timeline is %.1000q: %v", text, err)
	}
}

// traceEnv marks processes of TestTraceProcesses: it says whether each is a host of its own.
const traceEnv = "MSCCLGO_TEST_TRACE"

// traceChild is the program of a rank.
func traceChild() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if os.Getenv(traceEnv) == "hosts" {
		os.Setenv("MSCCLGO_HOST_ID", "host "+os.Getenv("RANK"))
	}
	return communicator.Run(ctx, communicator.Options{Device: "emu"}, func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "trace_test.cu", traceSource, devicecode.Options{})
		if err != nil {
			return err
		}
		buffer, err := comm.Device().Alloc(1 << 10)
		if err != nil {
			return err
		}
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		ports, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{})
		if err != nil {
			return err
		}
		kernel, err := module.Kernel("sendRound")
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		if err := kernel.Launch(stream, gpu.Blocks(1, 1), ports.Set(), uint32(comm.Rank()), uint32(traceRounds)); err != nil {
			return err
		}
		if err := errors.Join(stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil {
			return err
		}
		return errors.Join(stream.Close(), service.Close(), ports.Close(), module.Close())
	})
}

const traceRounds = 5

// TestTraceProcesses records ranks that are processes, by the environment alone: on one host, and
// as if each was on a host of its own. Such hosts compare clocks, and Ethernet connects them.
func TestTraceProcesses(t *testing.T) {
	if kind, _, _ := strings.Cut(testdev.Name(t, 0), ":"); kind != "emu" {
		t.Skip("the ranks are processes on emulated devices")
	}
	program := testerr.Must(os.Executable())(t)
	for _, mode := range []string{"host", "hosts"} {
		t.Run(mode, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			path := filepath.Join(t.TempDir(), "trace.json")
			var output bytes.Buffer
			if _, err := launcher.Run(ctx, launcher.Options{
				Ranks: 3, Program: program, Stdout: &output, Stderr: &output,
				Env: []string{traceEnv + "=" + mode, "MSCCLGO_TRACE=" + path, "MSCCLGO_TRACE_EVENTS=1000"},
			}); err != nil {
				t.Fatalf("%v\n%s", err, &output)
			}
			tr := readTrace(t, path)
			arrows := tr.arrows(t)
			pids := map[int]bool{}
			for _, e := range tr.Entries {
				pids[e.Pid] = true
			}
			if got := maps.Collect(maps.All(pids)); len(got) != 3 || len(tr.Facts.Ranks) != 3 {
				t.Errorf("the trace has processes %v", got)
			}
			for rank, r := range tr.Facts.Ranks {
				if estimated := mode == "hosts" && rank > 0; (r.Error > 0) != estimated {
					t.Errorf("rank %d's clock is known to within %v ns", rank, r.Error)
				}
			}
			if want := 3 * traceRounds; arrows["signal"]+tr.Facts.Contradicted != want || tr.slices["sendRound"] != 3 {
				t.Errorf("%d arrows of signals and %d wrong, want %d; the slices are %v", arrows["signal"], tr.Facts.Contradicted, want, tr.slices)
			}
			transport := map[string]string{"host": "CUDA IPC", "hosts": "Ethernet"}[mode]
			if text, _ := os.ReadFile(path); !bytes.Contains(text, []byte(transport)) {
				t.Errorf("nothing went over %s", transport)
			}
		})
	}
}
