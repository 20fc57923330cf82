package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// The variables of the processes of a run.
const (
	taskEnv   = "MSCCLGO_SOAK_TASK"   // the process is a rank
	launchEnv = "MSCCLGO_SOAK_LAUNCH" // the process launches as many ranks
	markEnv   = "MSCCLGO_SOAK_RUN"    // what the run is, in all its processes
)

// A run is a group whose ranks work until one has a fault.
type run struct {
	task
	fault fault
	ranks int
	delay time.Duration // of a fault from outside
	mark  string
	temp  string // for all its temporary files
	cache string // of compiled kernels, for all runs
}

// An outcome is what came of a run.
type outcome struct {
	missed bool          // all was over before the fault
	late   time.Duration // from the fault to the last survivor's error
	wrong  []string      // what is not as promised
}

// plan makes a run from the seed, the fault and the number of the run alone.
func plan(seed uint64, f fault, number, most int, span, timeout time.Duration) *run {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d", f.name, number)
	random := rand.New(rand.NewPCG(seed, hash.Sum64()))
	r := &run{fault: f, ranks: 2 + random.IntN(most-1)}
	r.task = task{Seed: random.Uint64(), Steps: 20 + random.IntN(60), Fault: f.name, Timeout: timeout}
	if f.name == "stopped" {
		r.Timeout = 10 * f.bound // no wait is to notice it first
	}
	r.Victim = random.IntN(r.ranks)
	r.At = random.IntN(r.Steps)
	r.delay = time.Duration(random.Float64() * float64(span))
	r.mark = fmt.Sprintf("%s=%d-%s-%d", markEnv, os.Getpid(), f.name, number)
	return r
}

// do runs it.
func (r *run) do() (outcome, error) {
	var err error
	if r.temp, err = os.MkdirTemp("", "mscclgo-soak-"); err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(r.temp)
	shared := names("/dev/shm")
	var o outcome
	if r.fault.name == "launcher killed" {
		o, err = r.killLauncher()
	} else {
		o, err = r.group()
	}
	if err != nil {
		return o, err
	}
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		left := r.leftovers(shared)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			o.wrong = append(o.wrong, left...)
			break
		}
	}
	r.killAll()
	return o, nil
}

// leftovers lists what the run has left on the machine.
func (r *run) leftovers(shared []string) []string {
	var left []string
	for _, pid := range r.processes() {
		left = append(left, fmt.Sprintf("process %d is left", pid))
	}
	for _, name := range names(r.temp) {
		left = append(left, name+" is left in the temporary folder")
	}
	for _, name := range names("/dev/shm") {
		if strings.Contains(name, "mscclgo") && !slices.Contains(shared, name) {
			left = append(left, name+" is left in /dev/shm")
		}
	}
	for _, name := range names(r.cache) {
		if strings.HasPrefix(name, ".") {
			left = append(left, name+" is left in the cache")
		}
	}
	return left
}

func names(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// processes returns the run's processes that have not ended.
func (r *run) processes() []int {
	var found []int
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environment, []byte(r.mark+"\x00")) {
			continue // of another user, gone, or not of the run
		}
		if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

func (r *run) killAll() {
	for _, pid := range r.processes() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// command returns this program in a role.
func (r *run) command(env ...string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), r.mark, "TMPDIR="+r.temp, "MSCCLGO_CACHE="+r.cache)
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (t *task) env() string {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err)
	}
	return taskEnv + "=" + string(text)
}

// process is a rank.
type process struct {
	cmd     *exec.Cmd
	reports []report // in order; complete once done is closed
	done    chan struct{}
}

// event returns the rank's report of an event, or nil.
func (p *process) event(name string) *report {
	for i := range p.reports {
		if p.reports[i].Event == name {
			return &p.reports[i]
		}
	}
	return nil
}

// group runs ranks and judges what they report.
func (r *run) group() (outcome, error) {
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		return outcome{}, err
	}
	defer rendezvous.Close()
	ranks := make([]*process, r.ranks)
	for i := range ranks {
		cmd, err := r.command(append(testproc.RankEnv(rendezvous.ID(), i, r.ranks), r.task.env())...)
		if err != nil {
			return outcome{}, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return outcome{}, err
		}
		if err := cmd.Start(); err != nil {
			return outcome{}, err
		}
		p := &process{cmd: cmd, done: make(chan struct{})}
		ranks[i] = p
		go func() {
			defer close(p.done)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var one report
				if json.Unmarshal(lines.Bytes(), &one) == nil {
					p.reports = append(p.reports, one)
				}
			}
			cmd.Wait()
		}()
	}
	stop, strangers := make(chan struct{}), make(chan int, 1)
	go func() {
		if r.fault.name == "strangers" {
			strangers <- r.disturb(rendezvous.ID().Addr(), rand.New(rand.NewPCG(r.Seed, 9)), stop)
		}
		close(strangers)
	}()
	began := r.inflict(ranks[r.Victim])
	patience := time.After(r.fault.bound + 30*time.Second)
	hung := map[int]bool{}
	for i, p := range ranks {
		if i == r.Victim && r.fault.outside { // it may be stopped
			continue
		}
		select {
		case <-p.done:
		case <-patience:
			hung[i] = true
			patience = time.After(0)
			p.cmd.Process.Kill()
			<-p.done
		}
	}
	ranks[r.Victim].cmd.Process.Kill()
	<-ranks[r.Victim].done
	close(stop)
	o := r.judge(ranks, hung, began)
	if n, came := <-strangers; came && n == 0 {
		o.missed = true
	}
	return o, nil
}

// inflict does a fault from outside to the victim, and returns when, or 0.
func (r *run) inflict(victim *process) int64 {
	if !r.fault.outside {
		return 0
	}
	time.Sleep(r.delay)
	began := time.Now().UnixNano()
	s := syscall.SIGKILL
	if r.fault.name == "stopped" {
		s = syscall.SIGSTOP
	}
	victim.cmd.Process.Signal(s) // fails if it has ended
	return began
}

// judge compares what the ranks report with what is promised. hung ranks did not end.
func (r *run) judge(ranks []*process, hung map[int]bool, began int64) (o outcome) {
	victim := ranks[r.Victim]
	if f := victim.event("fault"); f != nil {
		began = f.Time
	}
	over := r.fault.outside && victim.event("closing") != nil
	o.missed = over || victim.event("end") != nil && r.fault.outside
	say := func(rank int, format string, args ...any) {
		o.wrong = append(o.wrong, fmt.Sprintf("rank %d ", rank)+fmt.Sprintf(format, args...))
	}
	for i, p := range ranks {
		end := p.event("end")
		switch {
		case i == r.Victim && !r.fault.harmless:
			continue
		case hung[i]:
			say(i, "did not end: %+v", p.reports)
			continue
		case end == nil:
			say(i, "ended without a report: %v", p.cmd.ProcessState)
			continue
		}
		if end.Wrong > 0 {
			say(i, "found %d wrong elements", end.Wrong)
		}
		switch {
		case r.fault.harmless:
			if end.Text != "" || end.Steps != r.Steps {
				say(i, "failed in step %d: %s", end.Steps, end.Text)
			}
		case end.Text == "":
			if !over {
				say(i, "has no error")
			}
		case end.Peer != r.Victim:
			say(i, "blames rank %d: %s", end.Peer, end.Text)
		}
		if end.Text != "" {
			o.late = max(o.late, time.Duration(end.Time-began))
		}
	}
	return o
}

// killLauncher kills a launcher, whose ranks end with it.
func (r *run) killLauncher() (outcome, error) {
	cmd, err := r.command(launchEnv+"="+strconv.Itoa(r.ranks), r.task.env())
	if err != nil {
		return outcome{}, err
	}
	if err := cmd.Start(); err != nil {
		return outcome{}, err
	}
	time.Sleep(r.delay)
	began := time.Now()
	missed := errors.Is(cmd.Process.Kill(), os.ErrProcessDone)
	cmd.Wait()
	for len(r.processes()) > 0 && time.Since(began) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	return outcome{missed: missed || cmd.ProcessState.Success(), late: time.Since(began)}, nil
}

// calibrate returns how long a run without a fault takes, and leaves what it compiles in
// the cache.
func calibrate(ctx context.Context, cache string, timeout time.Duration) (time.Duration, error) {
	var took time.Duration
	for number := range 2 {
		r := plan(1, faults[0], number, 4, 0, timeout)
		r.cache = cache
		began := time.Now()
		o, err := r.do()
		if err != nil || len(o.wrong) > 0 || ctx.Err() != nil {
			return 0, errors.Join(err, ctx.Err(), mscclgo.Errorf(mscclgo.ErrSystem, "soak", "a run without a fault: %q", o.wrong))
		}
		took = time.Since(began) // the second has nothing to compile
	}
	return took, nil
}
