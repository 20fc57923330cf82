package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo/internal/deathwatch"
	"github.com/mscclgo/mscclgo/internal/explore"
)

// explorer runs a program again and again.
type explorer struct {
	ctx     context.Context
	dir     string
	watch   *deathwatch.Watch // of the folder and the program
	ranks   int
	program []string
	limit   time.Duration
	weak    bool
}

func runExplore(c *call) error {
	n := c.flags.Int("n", 2, fmt.Sprintf("`ranks` of a program that calls communicator.Run, 1 to %d", mostExplored))
	runs := c.flags.Int("runs", 200, "schedules to run")
	seed := c.flags.Uint64("seed", 1, "`seed` of the first; each has the next one")
	replay := c.flags.Uint64("replay", 0, "run this `seed` only")
	scheduler := c.flags.String("scheduler", "all", "random, pct, round-robin, or all in turns")
	shrink := c.flags.Int("shrink", 300, "`runs` at most to find few switches that make a failure")
	weak := c.flags.Bool("weak", true, "loads may get older values than the newest, as a GPU's memory model allows")
	limit := c.flags.Duration("timeout", 2*time.Minute, "`time` after which a run is ended")
	if err := c.parse(); err != nil {
		return err
	}
	replays := false
	c.flags.Visit(func(f *flag.Flag) { replays = replays || f.Name == "replay" })
	if replays {
		*seed, *runs = *replay, 1
	}
	switch {
	case *n < 1 || *n > mostExplored:
		return &usageError{fmt.Sprintf("-n is from 1 to %d", mostExplored)}
	case *runs < 1 || *shrink < 0 || *limit <= 0:
		return &usageError{"-runs and -timeout have to be above 0, and -shrink not below"}
	case *seed == 0:
		return &usageError{"-seed and -replay are 1 at least"}
	case scheduledBy(*scheduler, 0) == "":
		return &usageError{fmt.Sprintf("there is no scheduler %q", *scheduler)}
	case c.flags.NArg() == 0:
		return &usageError{"say which program to run"}
	}
	if _, err := exec.LookPath(c.flags.Arg(0)); err != nil {
		code := exitNotFound
		if errors.Is(err, os.ErrPermission) {
			code = exitCannotRun
		}
		return &exitError{code, err}
	}
	ctx, end := interruptible(1 << 62)
	defer end()
	dir, watch, err := deathwatch.Folder("mscclgo-explore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	defer watch.Close()
	e := &explorer{ctx: ctx, dir: dir, watch: watch, ranks: *n, program: c.flags.Args(), limit: *limit, weak: *weak}
	different := map[uint64]bool{}
	var notes []string
	for i := range *runs {
		p := explore.Plan{Seed: *seed + uint64(i)}
		p.Scheduler = scheduledBy(*scheduler, p.Seed)
		o, failure, err := e.run(p)
		if err != nil {
			return of(p, err)
		}
		if failure != "" {
			if err := e.tell(c.stdout, p, o, failure, *shrink); err != nil {
				return of(p, err)
			}
			return fmt.Errorf("seed %d fails, after %d schedules that did not", p.Seed, i)
		}
		if i == 0 {
			p.Expected = o.Trace
			if again, failure, err := e.run(p); err != nil {
				return of(p, err)
			} else if again.Diverged != "" {
				return errors.New(uncontrolled(again, o))
			} else if failure != "" {
				return of(p, fmt.Errorf("it did not fail when it ran first, so that something that is not under control decides: %s", failure))
			}
		}
		different[o.Digest] = true
		notes = o.Uncontrolled
	}
	tellUncontrolled(c.stdout, notes)
	fmt.Fprintf(c.stdout, "no failure in %d runs, of which %d schedules were different\n", *runs, len(different))
	return nil
}

// mostExplored is the most ranks that are explored.
const mostExplored = 64

// scheduledBy returns the scheduler of a seed, or "" if there is none of that name.
func scheduledBy(name string, seed uint64) explore.Scheduler {
	if name == "all" {
		return explore.Schedulers[seed%uint64(len(explore.Schedulers))]
	}
	for _, s := range explore.Schedulers {
		if string(s) == name {
			return s
		}
	}
	return ""
}

// of names the schedule of an error.
func of(p explore.Plan, err error) error {
	return fmt.Errorf("seed %d (%s): %w", p.Seed, p.Scheduler, err)
}

func tellUncontrolled(out io.Writer, notes []string) {
	for _, note := range notes {
		fmt.Fprintf(out, "note: not under control: %s\n", note)
	}
}

// uncontrolled says what the runs of one plan differ in.
func uncontrolled(again, first explore.Outcome) string {
	text := "the same schedule did not run twice: something depends on what is not under control, such as time, random numbers, the order of a map, or other goroutines: " + again.Diverged
	for _, note := range first.Uncontrolled {
		text += "; not under control: " + note
	}
	return text
}

// run runs the program, and returns what it did and how it failed, or "".
func (e *explorer) run(p explore.Plan) (o explore.Outcome, failure string, err error) {
	p.Weak = e.weak
	if err := (explore.Job{Plan: p, Ranks: e.ranks}).Write(e.dir); err != nil {
		return o, "", err
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.program[0], e.program[1:]...)
	cmd.Env = append(os.Environ(), explore.Variable+"="+e.dir, "MSCCLGO_DEVICE=emu")
	var output lastOutput
	cmd.Stdout, cmd.Stderr = &output, &output
	// With all that it starts: an interrupt of the terminal then is the command's alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	failed := cmd.Start()
	if failed == nil {
		e.watch.Add(cmd.Process.Pid)
		deathwatch.Await(cmd.Process.Pid)
		e.watch.Remove(cmd.Process.Pid)
		failed = cmd.Wait()
	}
	if e.ctx.Err() != nil {
		return o, "", errors.New("interrupted")
	}
	said := output.text()
	var exit *exec.ExitError
	// What the program has started may have its output open: that is no failure to run it.
	if failed != nil && !errors.As(failed, &exit) && !errors.Is(failed, exec.ErrWaitDelay) && ctx.Err() == nil {
		return o, "", failed
	}
	o, err = explore.ReadOutcome(e.dir)
	missing, begun := errors.Is(err, os.ErrNotExist), explore.Begun(e.dir)
	switch {
	case missing && ctx.Err() != nil:
		text := fmt.Sprintf("the program has not ended in %v; -timeout gives it longer", e.limit)
		if !begun {
			return o, "", errors.New(text)
		}
		return o, text + "\n" + said, nil
	case missing && begun && failed != nil:
		return o, fmt.Sprintf("the program ended while its group ran: %v\n%s", failed, said), nil
	case missing && begun:
		return o, "the program ended while its group ran, with exit status 0\n" + said, nil
	case missing && failed != nil:
		return o, "", fmt.Errorf("the program ended before its group had run (%w):\n%s", failed, said)
	case missing:
		return o, "", errors.New("the program ran no group of ranks that are goroutines on emulated devices; it has to call communicator.Run, Local or RunTogether")
	case err != nil:
		return o, "", err
	case o.Ended != "":
		return o, o.Ended, nil
	case failed != nil && o.Diverged == "":
		return o, fmt.Sprintf("%v\n%s", failed, said), nil
	}
	return o, "", nil
}

// mostSaid is how much is kept of what a program wrote, in bytes.
const mostSaid = 4096

// lastOutput keeps the last of what is written to it.
type lastOutput struct {
	kept []byte
	more bool // was written before
}

func (l *lastOutput) Write(b []byte) (int, error) {
	l.kept = append(l.kept, b[max(0, len(b)-mostSaid):]...)
	if n := len(l.kept) - mostSaid; n > 0 || len(b) > mostSaid {
		l.kept, l.more = append(l.kept[:0], l.kept[max(0, n):]...), true
	}
	return len(b), nil
}

func (l *lastOutput) text() string {
	text := strings.TrimSpace(string(l.kept))
	if l.more {
		text = "..." + text
	}
	return text
}

// tell says how a plan failed, what makes it fail, as far as that is found, and how it fails again.
func (e *explorer) tell(out io.Writer, p explore.Plan, o explore.Outcome, failure string, runs int) error {
	fmt.Fprintf(out, "seed %d (%s): %s\n", p.Seed, p.Scheduler, failure)
	tellUncontrolled(out, o.Uncontrolled)
	err := e.examine(out, p, o, failure, runs)
	strong := ""
	if !e.weak {
		strong = "-weak=false "
	}
	fmt.Fprintf(out, "again: mscclgo explore -n %d -scheduler %s %s-replay %d -- %s\n", e.ranks, p.Scheduler, strong, p.Seed, strings.Join(e.program, " "))
	return err
}

// examine runs a plan that failed once more, and looks for few switches that make it fail so.
func (e *explorer) examine(out io.Writer, p explore.Plan, o explore.Outcome, failure string, runs int) error {
	if len(o.Trace) == 0 {
		fmt.Fprintln(out, "the process ended before its schedule was written, so that no switches are known")
		return nil
	}
	p.Expected = o.Trace
	again, failureAgain, err := e.run(p)
	switch {
	case err != nil:
		return err
	case again.Diverged != "":
		fmt.Fprintln(out, uncontrolled(again, o))
		return nil
	case failureAgain == "":
		fmt.Fprintln(out, "the same schedule did not fail again: something that is not under control decides")
		return nil
	case !alike(failureAgain, failure):
		fmt.Fprintf(out, "the same schedule failed in another way when it ran again: %s\n", failureAgain)
		return nil
	}
	if o.More {
		fmt.Fprintln(out, "the run has too many switches to look for few")
		return nil
	}
	last, all, found, other := o, len(o.Switches), false, ""
	few := explore.Shrink(o.Switches, runs, func(some []explore.Switch) ([]explore.Switch, bool) {
		o, how, runErr := e.run(explore.Plan{Scheduler: explore.Fixed, Switches: explore.Sorted(some)})
		if err = errors.Join(err, runErr); runErr != nil || how == "" {
			return nil, false
		}
		if !alike(how, failure) {
			other = how
			return nil, false
		}
		last, found = o, true
		return o.Switches, true
	})
	if err != nil {
		return err
	}
	if other != "" {
		fmt.Fprintf(out, "with some of its switches it fails in another way: %s\n", other)
	}
	const otherwise = "each thread goes on while it can, and then its block"
	switch {
	case all == 0:
		fmt.Fprintf(out, "it has no switches: %s\n", otherwise)
		return nil
	case !found:
		fmt.Fprintf(out, "no fewer switches were found than its %d\n", all)
		return nil
	case len(few) == 0:
		fmt.Fprintf(out, "it fails too with none of %d switches, where %s\n", all, otherwise)
	default:
		fmt.Fprintf(out, "it fails too with %d of %d switches, where otherwise %s:\n", len(few), all, otherwise)
	}
	lines := explore.Lines(few)
	for i, line := range lines {
		if i == mostPrinted {
			fmt.Fprintf(out, "  and %d more lines\n", len(lines)-i)
			break
		}
		fmt.Fprintf(out, "  %s\n", line)
	}
	if last.Ended != "" && len(few) < all {
		fmt.Fprintf(out, "and then: %s\n", last.Ended)
	}
	return nil
}

// numbers are what failures of one kind differ in: words, times, addresses.
var numbers = regexp.MustCompile(`0x[0-9a-f]+|[0-9]+(\.[0-9]+)?`)

// alike reports whether two failures are of one kind, by their first lines without the numbers.
func alike(a, b string) bool {
	kind := func(failure string) string {
		first, _, _ := strings.Cut(failure, "\n")
		return numbers.ReplaceAllString(first, "0")
	}
	return kind(a) == kind(b)
}

// mostPrinted is how many lines on switches are printed.
const mostPrinted = 40
