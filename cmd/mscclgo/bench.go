package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/bench"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// sizeFlag is a flag that takes a size, such as 64K.
type sizeFlag uint64

func (s *sizeFlag) String() string { return bytesize.Format(uint64(*s)) }

func (s *sizeFlag) Set(text string) error {
	n, err := bytesize.Parse(text)
	*s = sizeFlag(n)
	return err
}

// benchFlags are the flags of bench that are not a bench.Config's own.
type benchFlags struct {
	ranks                  int
	device                 string
	timeout, soak          time.Duration
	first, last, scratch   sizeFlag
	factor                 uint64
	places, algos, compare string
	sms                    string
	json, plot, tune, with string
	primitives             bool
	progress               io.Writer // no flag: where rank 0 reports its progress
}

// defineBench defines the flags on a call.
func defineBench(c *call, f *benchFlags, cfg *bench.Config) {
	f.first, f.last, f.scratch = 1<<10, 256<<20, 256<<20
	c.flags.IntVar(&f.ranks, "n", 0, "`ranks` to start, or that a launcher has started; 0 is as many as it has, or else one for each GPU, or 2")
	c.flags.StringVar(&f.device, "device", "auto",
		"\"cuda\", \"emu\", \"auto\", one `device` such as \"cuda:0\", or one for each rank, with commas between:\nthe ranks are in one process then, and may share a GPU")
	c.flags.DurationVar(&f.timeout, "timeout", time.Hour, "of the whole run")
	c.flags.Var(&f.first, "b", "first `size` in bytes, such as 64K")
	c.flags.Var(&f.last, "e", "last `size` in bytes")
	c.flags.Uint64Var(&f.factor, "f", 4, "`factor` from one size to the next")
	c.flags.Uint64Var(&cfg.Offset, "offset", 0, "`bytes` by which the buffers are off their alignment")
	c.flags.StringVar(&cfg.Type, "d", "f16", fmt.Sprintf("element `type`: one of %v", collective.Types()))
	c.flags.StringVar(&cfg.Op, "o", "sum", fmt.Sprintf("`operation`: one of %v", collective.Ops()))
	c.flags.IntVar(&cfg.Root, "r", 0, "root `rank` of a collective that has one")
	c.flags.StringVar(&f.places, "place", "out", `"out" of place, "in" place, or both: "out,in"`)
	c.flags.IntVar(&cfg.Iters, "iters", 20, "operations in a graph, or launched one after the other")
	c.flags.IntVar(&cfg.Warmup, "w", 20, "`operations` before the timed ones, at least")
	c.flags.IntVar(&cfg.Replays, "replays", 7, "times that -iters operations are timed in a round")
	c.flags.IntVar(&cfg.Rounds, "rounds", 3, "turns that algorithms and other libraries take")
	c.flags.BoolVar(&cfg.Graph, "graph", true, "time operations inside a CUDA graph; -graph=false launches each")
	c.flags.BoolVar(&cfg.Overlap, "overlap", true, "operations may begin while those before end, on H100 and later")
	c.flags.BoolVar(&cfg.Check, "c", true, "check every element, before and after")
	c.flags.StringVar(&f.algos, "algo", "auto", "algorithms: auto (by the tuning), all, or `names` with commas between")
	c.flags.IntVar(&cfg.Blocks, "blocks", 0, "blocks of a kernel, at most, but that some algorithms need 2, and ports takes up to 17 or one more: -sms bounds all;\n0 leaves it to the tuning")
	c.flags.StringVar(&f.sms, "sms", "", "bound the blocks of every kernel, also of NCCL's, and so the multiprocessors that are used: a `number`, or\nseveral with commas between, which take turns; the choice of algorithm is then that for so few")
	c.flags.IntVar(&cfg.Threads, "threads", 0, "threads of a block; 0 leaves it to the tuning")
	c.flags.Var(&f.scratch, "scratch", "`size` of each rank's memory for packets")
	c.flags.StringVar(&f.compare, "compare", "", "time others in the same processes: `names` with commas between, of nccl, nccl-sym (symmetric windows),\nall-to-all-v, which is an all-to-all with a count for each pair of ranks, sends, which is an\nall-to-all or send-receive as a group of sends and receives, and sends-unshared, which is the same\nin buffers that the ranks have not shared")
	c.flags.BoolVar(&cfg.Unprepared, "unprepared", false, "time calls on any buffer beside, with their time over the prepared calls'")
	c.flags.StringVar(&cfg.NCCL, "nccl", "", "`file` of the NCCL library; empty searches for libnccl.so.2")
	c.flags.StringVar(&f.json, "json", "", "`file` that gets a line of JSON for each result")
	c.flags.StringVar(&f.plot, "plot", "", "`file` that gets an SVG of time and bus bandwidth against size, or against blocks with several of -sms")
	c.flags.StringVar(&f.tune, "tune", "", "first measure all algorithms with many grids, write the choice to this `file`, and then use it")
	c.flags.DurationVar(&cfg.Budget, "budget", 0, "of -tune: leave grids out to end within about so long; 0 is as long as it takes")
	c.flags.StringVar(&f.with, "tuning", "", "`file` that -tune wrote, in the place of the built-in choice")
	c.flags.BoolVar(&f.primitives, "primitives", false, "time semaphores, packets, port channels, pipes, rings of pipes beside NCCL's, and the ring of triggers instead")
	c.flags.DurationVar(&f.soak, "soak", 0, "no times: alternate everything at random for so long, and check it")
}

func runBench(c *call) error {
	var f benchFlags
	var cfg bench.Config
	defineBench(c, &f, &cfg)
	if err := c.parse(); err != nil {
		return err
	}
	if err := checkMode(c.flags); err != nil {
		return &usageError{err.Error()}
	}
	if err := configure(c.flags.Args(), &f, &cfg); err != nil {
		return &usageError{err.Error()}
	}
	launched := bootstrap.InGroupEnv(os.LookupEnv)
	devices := list(f.device)
	switch {
	case len(devices) > 1 && (launched || f.ranks != 0 && f.ranks != len(devices)):
		return &usageError{"-device has a device for each rank of this process, so neither a launcher nor -n says how many there are"}
	case len(devices) > 1:
		f.ranks = len(devices)
	case f.ranks == 0 && !launched:
		f.ranks = defaultRanks()
	}
	if launched && f.ranks != 0 {
		// What is wrong with the environment itself is for Run to say.
		if env, err := bootstrap.FromEnv(os.LookupEnv); err == nil && env.Options.Size != f.ranks {
			return &usageError{fmt.Sprintf("-n %d: this is a rank of a group of %d, which %s has started; %s", f.ranks, env.Options.Size, env.Launcher, aloneHint())}
		}
	}
	if !launched {
		if err := cfg.Validate(f.ranks); err != nil {
			return &usageError{err.Error()}
		}
		if err := f.checkFiles(); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	options := communicator.Options{Device: f.device, Scratch: uint64(f.scratch)}
	rank := func(ctx context.Context, comm *communicator.Communicator) error {
		return benchRank(ctx, comm, c, &f, cfg)
	}
	switch {
	case len(devices) > 1:
		shown := filterOf(c)
		c.stdout, f.progress = clearing{shown, c.stdout}, shown
		return errors.Join(benchTogether(devices, options, f.timeout, rank), shown.Clear())
	case launched:
		f.progress = progressOf(c)
		ctx, end := interruptible(f.timeout)
		defer end()
		return communicator.Run(ctx, options, rank)
	}
	return launchBench(c, f.ranks)
}

// benchTogether runs the ranks in this process, one for each device named. Ranks that
// share a GPU run on it at the same time; processes would take turns.
func benchTogether(devices []string, o communicator.Options, timeout time.Duration, rank func(context.Context, *communicator.Communicator) error) (err error) {
	if o.Transports, err = registeredmem.TransportsFromEnv(o.Transports); err != nil {
		return err
	}
	ctx, end := interruptible(timeout)
	defer end()
	var open []*gpu.Device
	defer func() {
		for _, d := range open {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, name := range devices {
		d, err := gpu.Open(name)
		if err != nil {
			return err
		}
		open = append(open, d)
	}
	return communicator.RunTogether(ctx, open, o, rank)
}

// checkFiles reports a file that could not be written in the end, or that would be
// written twice. What is there stays as it is.
func (f *benchFlags) checkFiles() error {
	if err := namedTwice(f.json, f.plot, f.tune); err != nil {
		return err
	}
	for _, name := range []string{f.json, f.plot, f.tune} {
		if name == "" {
			continue
		}
		_, missing := os.Stat(name)
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		if missing != nil {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// modes are the flags that have bench do something else than time collectives, each with
// the other flags that it then takes, or nil for all.
var modes = []struct {
	name  string
	takes []string
}{
	{"primitives", []string{"n", "device", "timeout", "scratch", "nccl", "json"}},
	{"soak", []string{"n", "device", "timeout", "scratch", "e"}},
	{"tune", nil},
}

// checkMode reports flags that were given and would have no effect.
func checkMode(flags *flag.FlagSet) error {
	given := func(name string) bool {
		f := flags.Lookup(name)
		return f.Value.String() != f.DefValue
	}
	mode := -1
	for i, m := range modes {
		if !given(m.name) {
			continue
		}
		if mode >= 0 {
			return fmt.Errorf("-%s and -%s exclude each other", modes[mode].name, m.name)
		}
		mode = i
	}
	if mode < 0 || modes[mode].takes == nil {
		return nil
	}
	m := modes[mode]
	if m.name == "primitives" && flags.NArg() > 0 {
		return fmt.Errorf("-primitives takes no collectives, such as %s", flags.Arg(0))
	}
	var wrong error
	flags.Visit(func(f *flag.Flag) {
		if wrong == nil && f.Name != m.name && !slices.Contains(m.takes, f.Name) {
			wrong = fmt.Errorf("-%s has no effect with -%s", f.Name, m.name)
		}
	})
	return wrong
}

// configure fills in what the flags and arguments name.
func configure(names []string, f *benchFlags, cfg *bench.Config) (err error) {
	if len(names) == 0 {
		cfg.Collectives = collective.Kinds()
	}
	for _, name := range names {
		one, err := collective.ParseKind(name)
		if err != nil {
			return err
		}
		cfg.Collectives = append(cfg.Collectives, one)
	}
	cfg.Places, cfg.Algorithms, cfg.Compare = list(f.places), list(f.algos), list(f.compare)
	if cfg.Sizes, err = bench.Sizes(uint64(f.first), uint64(f.last), f.factor); err != nil {
		return err
	}
	if cfg.Tuning, err = readTuning(f.with); err != nil {
		return err
	}
	for _, text := range list(f.sms) {
		most, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-sms takes numbers, and %q is none", text)
		}
		cfg.SMs = append(cfg.SMs, most)
	}
	switch {
	case f.ranks < 0:
		return errors.New("-n has to be above 0")
	case f.timeout <= 0:
		return errors.New("-timeout has to be above 0")
	case f.soak < 0:
		return errors.New("-soak must not be negative")
	}
	if len(cfg.SMs) > 1 && f.tune != "" {
		return errors.New("-tune takes one number of -sms")
	}
	if cfg.Budget != 0 && f.tune == "" {
		return errors.New("-budget is for -tune")
	}
	if cfg.NCCL != "" && !f.primitives && !strings.Contains(f.compare, "nccl") {
		return errors.New("-nccl is for -compare nccl, -compare nccl-sym and -primitives")
	}
	return endsInSVG("plot", f.plot)
}

// list splits text at commas.
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// readTuning reads a tuning from a file, or returns the built-in one.
func readTuning(file string) (*collective.Tuning, error) {
	if file == "" {
		return collective.DefaultTuning()
	}
	r, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("-tuning: %w", err)
	}
	defer r.Close()
	t, err := collective.ReadTuning(r)
	if err != nil {
		return nil, fmt.Errorf("-tuning %s: %w", file, err)
	}
	return t, nil
}

// defaultRanks returns the number of this machine's GPUs, or 2.
func defaultRanks() int {
	infos, _ := gpu.List() // of a driver that does not work the ranks tell, if they are to use it
	gpus := 0
	for _, info := range infos {
		if info.PCIBusID != "" {
			gpus++
		}
	}
	return max(gpus, 2)
}

// launchBench starts this program as the ranks.
func launchBench(c *call, ranks int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	shown := filterOf(c)
	// The table must not mix with the progress shown below it.
	code, err := launcher.Run(context.Background(), launcher.Options{
		Ranks: ranks, Program: program, Args: append([]string{c.name}, c.args...), Env: []string{launchedEnv + "=1"},
		Stdout: clearing{shown, c.stdout}, Stderr: shown,
	})
	err = errors.Join(err, shown.Clear())
	if err != nil {
		return &exitError{code, err}
	}
	return nil
}

// launchedEnv is set for a rank whose progress launchBench shows.
const launchedEnv = "MSCCLGO_BENCH_LAUNCHED"

// progressOf returns where a rank reports its progress.
func progressOf(c *call) io.Writer {
	if os.Getenv(launchedEnv) != "" {
		return c.stderr
	}
	return filterOf(c)
}

// filterOf returns the filter that shows progress on a terminal.
func filterOf(c *call) *bench.ProgressFilter {
	return &bench.ProgressFilter{Out: c.stderr, Terminal: isTerminal(c.stderr)}
}

// clearing writes to a terminal on which a filter also shows progress.
type clearing struct {
	shown *bench.ProgressFilter
	out   io.Writer
}

func (w clearing) Write(p []byte) (int, error) {
	if err := w.shown.Clear(); err != nil {
		return 0, err
	}
	return w.out.Write(p)
}

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// lazyFile is a file that is created, in the place of an older one, when there is
// something to write.
type lazyFile struct {
	name string
	file *os.File
}

func (f *lazyFile) Write(p []byte) (n int, err error) {
	if f.file == nil {
		if f.file, err = os.Create(f.name); err != nil {
			return 0, err
		}
	}
	return f.file.Write(p)
}

func (f *lazyFile) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// benchRank is what each rank does; rank 0 reports.
func benchRank(ctx context.Context, comm *communicator.Communicator, c *call, f *benchFlags, cfg bench.Config) (err error) {
	sinks := bench.Sinks{Progress: func(string) {}}
	if comm.Rank() == 0 {
		if err := f.checkFiles(); err != nil {
			return err
		}
		sinks.Table, sinks.Progress = c.stdout, bench.ShowProgress(f.progress)
		if f.json != "" {
			file := &lazyFile{name: f.json}
			defer func() { err = errors.Join(err, file.Close()) }()
			sinks.JSON = file
		}
	}
	switch {
	case f.primitives:
		return endIfStuck(c, bench.Primitives(ctx, comm, cfg.NCCL, sinks))
	case f.soak > 0:
		return soak(ctx, comm, f, cfg, sinks)
	}
	var failed error
	if f.tune != "" {
		if cfg.Tuning, failed = tune(ctx, comm, f, cfg, sinks); cfg.Tuning == nil || comm.Err() != nil {
			return failed
		}
	}
	results, err := bench.Run(ctx, comm, cfg, sinks)
	if comm.Rank() == 0 && f.plot != "" && len(results) > 0 {
		err = errors.Join(err, bench.Plot(f.plot, results))
	}
	return errors.Join(failed, endIfStuck(c, err))
}

// endIfStuck returns err, or ends the process without a wait for the GPU if it is one that
// [bench.Stuck] reports.
func endIfStuck(c *call, err error) error {
	if bench.Stuck(err) {
		fmt.Fprintf(c.stderr, "mscclgo %s: %v\n", c.name, err)
		os.Exit(exitFailed)
	}
	return err
}

func soak(ctx context.Context, comm *communicator.Communicator, f *benchFlags, cfg bench.Config, sinks bench.Sinks) error {
	const batch = 100
	calls, err := bench.Soak(ctx, comm, bench.SoakConfig{
		Collectives: cfg.Collectives, Most: max(uint64(f.last), 1024), Batch: batch, For: f.soak,
	}, sinks.Progress)
	if err == nil && sinks.Table != nil {
		fmt.Fprintf(sinks.Table, "%d calls, no wrong element\n", calls)
	}
	return err
}

// tune measures a tuning and writes it to a file. It may return both a tuning and an
// error: the tuning holds what could be measured. The rules of cfg.Tuning follow, for
// other ranks, links and collectives.
func tune(ctx context.Context, comm *communicator.Communicator, f *benchFlags, cfg bench.Config, sinks bench.Sinks) (*collective.Tuning, error) {
	tuning, err := bench.Tune(ctx, comm, cfg, sinks)
	if tuning == nil {
		return nil, err
	}
	if comm.Rank() == 0 {
		file, failed := os.Create(f.tune)
		if failed == nil {
			failed = errors.Join(tuning.Write(file), file.Close())
		}
		err = errors.Join(err, failed)
	}
	// All ranks choose alike, since they have the same times.
	return &collective.Tuning{Rules: append(tuning.Rules, cfg.Tuning.Rules...)}, err
}
