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
	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// The variables of the processes of a run.
const (
	taskEnv   = "MSCCLGO_SOAK_TASK"   // the process is a rank
	launchEnv = "MSCCLGO_SOAK_LAUNCH" // the process launches as many ranks
	fillEnv   = "MSCCLGO_SOAK_FILL"   // the process compiles what the ranks need
	markEnv   = "MSCCLGO_SOAK_RUN"    // what the run is, in all its processes
)

// A run is a group whose ranks work until one has a fault, and perhaps another group beside
// it, to which nothing may happen.
type run struct {
	task
	fault      fault
	ranks      int
	beside     int           // ranks of the other group
	transports []string      // that each rank may use
	span       time.Duration // of a run without a fault
	delay      time.Duration // of a fault from outside
	mark       string
	temp       string // for all its temporary files
	cache      string // of compiled kernels, for all runs
	alone      bool   // no other run is under way
	hosts      int    // of a network, 0 for this machine alone
	lab        *netlab.Lab
	mate       int  // of the victim, where the fault is of two ranks
	reform     bool // survivors go on together
	slack      float64
	release    func() // closes what was kept of the victim
}

const (
	// mostInTime is the bytes of a call in runs in which a wait's deadline is to pass, and no
	// other's may.
	mostInTime = 64 << 10
	// calmTimeout is the least deadline in runs in which none is to pass.
	calmTimeout = 20 * time.Second
)

// An outcome is what came of a run.
type outcome struct {
	missed  bool          // all was over before the fault
	goes    bool          // the fault was tolerated: the work went on
	again   bool          // survivors went on in another group
	skipped string        // why it could not be done here
	late    time.Duration // from the fault to the last survivor's error
	last    string        // that one
	paused  time.Duration // by which it may be late since ranks did not run meanwhile
	wrong   []string      // what is not as promised
	left    []string      // what is left that should not be
}

// all returns all that is wrong.
func (o *outcome) all() []string { return slices.Concat(o.wrong, o.left) }

// plan makes a run from the seed, the fault and the number of the run alone, but for when it
// is: span is what a run takes.
func (c *config) plan(f fault, number int, span time.Duration) *run {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s %d", f.name, number)
	random := rand.New(rand.NewPCG(c.seed, hash.Sum64()))
	r := &run{fault: f, ranks: 2 + random.IntN(c.ranks-1), cache: c.cache, slack: c.slack, alone: c.parallel == 1, release: func() {}}
	if f.many {
		r.ranks = manyHosts
	}
	r.task = task{
		Seed: random.Uint64(), Steps: c.steps/2 + random.IntN(c.steps), Fault: f.name, Timeout: c.timeout, Heartbeat: c.heartbeat, Device: c.device,
		Most: c.most, Short: c.short,
	}
	if f.waits {
		r.Most = min(r.Most, mostInTime)
	} else {
		r.Timeout = max(r.Timeout, time.Duration(c.slack*float64(calmTimeout)))
	}
	if f.beats {
		r.Timeout = 3 * (c.heartbeat + time.Second) // no wait is to notice it first
	}
	if f.name == "disk full" {
		r.Timeout = time.Minute // in which the victim compiles
	}
	if f.many { // before At is drawn
		r.Steps = manySteps
	}
	r.Victim = random.IntN(r.ranks)
	if f.name == fewAtRankZero {
		r.Victim = 0
	}
	r.At = random.IntN(r.Steps)
	r.span = span
	r.delay = time.Duration(random.Float64() * float64(span))
	if f.name == killedEarly {
		r.delay = early(random)
	}
	if random.IntN(3) == 0 {
		r.beside = 2
	}
	if f.name == "other grid" && r.ranks == 2 {
		r.fault.either = true // of two, either may have the wrong one
	}
	if f.network {
		r.hosts = 2 + random.IntN(min(2, r.ranks-1))
	}
	if f.network && f.harmless {
		r.Timeout = time.Minute // TCP sends again after a while, and then after longer ones
	}
	mode := random.IntN(3)
	for range r.ranks {
		r.transports = append(r.transports, transport(mode, random))
	}
	if f.pairs {
		r.pair()
	}
	if f.many {
		r.spread()
	}
	r.reform = f.name == "killed" && random.IntN(2) == 0
	r.mark = fmt.Sprintf("%s=%d-%s-%d", markEnv, os.Getpid(), f.name, number)
	return r
}

// transport returns what a rank may use: where the memory of all ranks is mapped, of none, or
// of some. What is not mapped goes through shared memory of the host where both ranks may.
func transport(mode int, random *rand.Rand) string {
	near := [...]string{"ethernet", "shm,ethernet"}[random.IntN(2)]
	if mode == 0 || mode == 2 && random.IntN(2) == 0 {
		return "cudaipc," + near
	}
	return near
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
	if r.fault.name == "disk full" {
		undo, err := fullDisk(r.disk())
		if err != nil {
			return outcome{skipped: "no file system of its own: " + err.Error()}, nil
		}
		defer undo()
	}
	if r.hosts > 0 {
		lab, remove, err := newHosts(r.hosts, r.options())
		if err != nil {
			return outcome{skipped: "no network of its own: " + err.Error()}, nil
		}
		defer remove()
		r.lab = lab
	}
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
			o.left = append(o.left, left...)
			break
		}
	}
	r.killAll()
	return o, nil
}

// disk is the folder of the victim whose disk is full.
func (r *run) disk() string { return filepath.Join(r.temp, "disk") }

// leftovers lists what the run has left on the machine.
func (r *run) leftovers(shared []string) []string {
	var left []string
	for _, pid := range r.processes() {
		left = append(left, fmt.Sprintf("process %d is left", pid))
	}
	for _, name := range names(r.temp) {
		if name == filepath.Base(r.disk()) {
			continue
		}
		left = append(left, name+" is left in the temporary folder")
	}
	for _, name := range names("/dev/shm") {
		if r.alone && strings.Contains(name, "mscclgo") && !slices.Contains(shared, name) {
			left = append(left, name+" is left in /dev/shm")
		}
	}
	for _, name := range names(r.cache) {
		if r.alone && strings.HasPrefix(name, ".") {
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

// command returns this program in a role, on a host, or on this machine for nil.
func (r *run) command(host *netlab.Host, env ...string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	if host != nil {
		cmd = host.Command(context.Background(), program)
	}
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
	stderr  bytes.Buffer
	ended   int64 // when; set once done is closed, as is stderr
	done    chan struct{}
}

// stacks returns the stacks that a process was told to print, of goroutines that do a rank's work, or form or
// leave its group.
func (p *process) stacks() string {
	var some []string
	for _, one := range strings.Split(p.stderr.String(), "\n\n") {
		if strings.Contains(one, "main.(*worker)") || strings.Contains(one, "main.rank(") || strings.Contains(one, "/bootstrap.") {
			some = append(some, one)
		}
	}
	return strings.Join(some, "\n\n")
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

// start starts the ranks of a group. env has more variables for each.
func (r *run) start(id bootstrap.UniqueID, n int, t task, on func(rank int) *netlab.Host, env func(rank int) []string) ([]*process, error) {
	ranks := make([]*process, n)
	for i := range ranks {
		vars := append(testproc.RankEnv(id, i, n), t.env())
		cmd, err := r.command(on(i), append(vars, env(i)...)...)
		if err != nil {
			return nil, err
		}
		p := &process{cmd: cmd, done: make(chan struct{})}
		cmd.Stderr = &p.stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		ranks[i] = p
		go func() {
			defer close(p.done)
			for lines := bufio.NewReader(out); ; {
				line, err := lines.ReadBytes('\n')
				var one report
				if json.Unmarshal(line, &one) == nil {
					p.reports = append(p.reports, one)
				}
				if err != nil {
					break
				}
			}
			p.ended = time.Now().UnixNano()
			cmd.Wait()
		}()
	}
	return ranks, nil
}

// watch tells the rendezvous what becomes of a rank, as a launcher does.
func (p *process) watch(ended func(how string), stopped func(process int, since time.Time)) {
	const interval = 250 * time.Millisecond
	for began := time.Now(); ; {
		select {
		case <-p.done:
			ended("ended")
			return
		case <-time.After(interval):
		}
		if process, is := procfs.StoppedIn(p.cmd.Process.Pid); is {
			stopped(process, began)
		} else {
			began = time.Now()
		}
	}
}

// none is no rank.
func none(int) bool { return false }

// await returns the ranks that did not end before patience was over, which it kills.
func await(ranks []*process, except func(rank int) bool, patience time.Duration) map[int]bool {
	over := time.After(patience)
	hung := map[int]bool{}
	for i, p := range ranks {
		if except(i) {
			continue
		}
		select {
		case <-p.done:
			continue
		case <-over:
		}
		hung[i] = true
		over = time.After(0)
		p.cmd.Process.Signal(syscall.SIGQUIT) // for the stacks
		select {
		case <-p.done:
		case <-time.After(time.Second):
		}
		p.cmd.Process.Kill()
		<-p.done
	}
	return hung
}

// group runs the groups and judges what they report.
func (r *run) group() (outcome, error) {
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		return outcome{}, err
	}
	defer rendezvous.Close()
	var bystanders []*process
	if r.beside > 0 {
		second, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
		if err != nil {
			return outcome{}, err
		}
		defer second.Close()
		t := r.task
		t.Fault, t.Victim, t.Timeout = "none", -1, time.Minute
		if bystanders, err = r.start(second.ID(), r.beside, t, func(int) *netlab.Host { return nil }, func(int) []string { return nil }); err != nil {
			return outcome{}, err
		}
	}
	id := rendezvous.ID()
	if r.lab != nil { // at rank 0
		if id, err = bootstrap.NewUniqueID(r.hostOf(0).Address + ":29400"); err != nil {
			return outcome{}, err
		}
	}
	if r.fault.name == fewAtRankZero || r.fault.name == sizesDiffer || r.fault.name == killedEarly {
		if id, err = r.hosted(); err != nil {
			return outcome{}, err
		}
	}
	if r.reform {
		elastic, err := bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: 1, Max: r.ranks - 1, Settle: settle})
		if err != nil {
			return outcome{}, err
		}
		defer elastic.Close()
		r.Elastic = elastic.ID().String()
	}
	ranks, err := r.start(id, r.ranks, r.task, r.hostOf, func(rank int) []string {
		env := append(r.manyHost(rank), "MSCCLGO_TRANSPORTS="+r.transports[rank])
		if r.fault.name == "disk full" && rank == r.Victim {
			env = append(env, "TMPDIR="+r.disk(), "MSCCLGO_CACHE="+r.disk())
		}
		if r.fault.name == sizesDiffer && rank == r.Victim {
			env = append(env, "WORLD_SIZE="+r.otherSize(), "LOCAL_WORLD_SIZE="+r.otherSize())
		}
		return env
	})
	if err != nil {
		return outcome{}, err
	}
	for i, p := range ranks {
		go p.watch(func(how string) { rendezvous.Internal().Ended(i, how) }, func(process int, since time.Time) { rendezvous.Internal().Stopped(i, process, since) })
	}
	var burst time.Duration // the longest in which packets were lost
	stop, strangers, failed := make(chan struct{}), make(chan int, 1), make(chan error, 2)
	go func() {
		random := rand.New(rand.NewPCG(r.Seed, 9))
		switch r.fault.name {
		case "strangers":
			strangers <- r.disturb(id.Addr(), mostStrangers, random, stop)
		case "few descriptors":
			strangers <- r.disturb(id.Addr(), 2*fewDescriptors, random, stop)
		case "packets dropped":
			var err error
			if burst, err = drop(r.hostOf(r.Victim), random, stop); err != nil {
				failed <- err
			}
		}
		close(strangers)
	}()
	victim := ranks[r.Victim]
	began := int64(0)
	defer func() { r.release() }()
	mate := victim
	if r.fault.pairs {
		mate = ranks[r.mate]
	}
	if err := try(func() { began = r.inflict(victim, mate) }); err != nil {
		failed <- err
	}
	except := func(rank int) bool { // it may be stopped
		return r.fault.outside && !r.fault.harmless && !r.fault.tolerated && (rank == r.Victim || r.isMate(rank))
	}
	hung := await(ranks, except, r.patience())
	if r.fault.name == "continued late" {
		victim.cmd.Process.Signal(syscall.SIGCONT)
		if await([]*process{victim}, none, 10*time.Second)[0] {
			hung[r.Victim] = true
		}
	}
	for _, p := range []*process{victim, mate} {
		p.cmd.Process.Kill()
		<-p.done
	}
	close(stop)
	o := r.judge(ranks, hung, began)
	if n, came := <-strangers; came && n == 0 {
		o.missed = true
	}
	if burst > r.Heartbeat/2 { // TCP may be silent for the heartbeat time-out
		o.missed = true
		o.wrong = slices.DeleteFunc(o.wrong, func(text string) bool { return !strings.Contains(text, wrongElements) })
	}
	select {
	case err := <-failed:
		return outcome{}, err
	default:
	}
	if r.beside > 0 {
		calm := &run{task: r.task, fault: faults[0], ranks: r.beside, slack: r.slack}
		calm.Victim = -1
		beside := calm.judge(bystanders, await(bystanders, none, calm.patience()), 0)
		for _, text := range beside.all() {
			o.wrong = append(o.wrong, "in the group beside it, "+text)
		}
	}
	return o, nil
}

// patience is how long the ranks may take to end.
func (r *run) patience() time.Duration {
	patience := r.fault.bound + time.Duration(r.slack*float64(30*time.Second))
	if strings.HasPrefix(r.Device, "cuda") {
		patience += 2 * r.span // GPUs may take long to open
	}
	if r.fault.name == "disk full" {
		patience += time.Minute
	}
	if r.reform {
		patience += reforming
	}
	if r.fault.name == killedEarly {
		patience += connecting
	}
	return patience
}

// closePatience is how long a rank may take to close when its group has failed, on a busy
// machine: no wait of a run with a stopped rank ends by then.
const closePatience = 10 * time.Second

const wrongElements = "wrong elements"

// judge compares what the ranks report with what is promised. hung ranks did not end.
func (r *run) judge(ranks []*process, hung map[int]bool, began int64) (o outcome) {
	var victim *process
	over := false
	if r.Victim >= 0 {
		victim = ranks[r.Victim]
		if f := victim.event("fault"); f != nil {
			began = f.Time
		}
		end := victim.event("end")
		if r.fault.outside && !r.fault.harmless && !r.fault.tolerated {
			over = victim.event("closing") != nil
			o.missed = over || end != nil && end.Text == ""
		}
		if r.fault.tolerated && !r.fault.either {
			if began = victim.ended; end != nil {
				began = end.Time
			}
		}
	}
	say := func(rank int, format string, args ...any) {
		o.wrong = append(o.wrong, fmt.Sprintf("rank %d ", rank)+fmt.Sprintf(format, args...))
	}
	failed, kinds := 0, map[string][]int{} // of the others' errors
	for i, p := range ranks {
		end := p.event("end")
		if end != nil {
			if end.Wrong > 0 {
				say(i, "found %d %s, first in %s", end.Wrong, wrongElements, end.What)
			}
			for _, text := range end.Left {
				if i == r.Victim && r.fault.name == "handler blocks" {
					break // its handler does not return
				}
				o.left = append(o.left, fmt.Sprintf("rank %d has left %s", i, text))
			}
			if end.Text != "" {
				failed++
			}
		}
		switch {
		case hung[i]:
			say(i, "did not end: %+v %s", p.reports, p.stacks())
			continue
		case i == r.Victim && r.fault.name == "continued late" && !over:
			if end == nil {
				say(i, "ended without a report: %v", p.cmd.ProcessState)
			} else if end.Text == "" {
				say(i, "does not know that it was left out")
			}
			continue
		case (i == r.Victim || r.isMate(i)) && !r.fault.harmless:
			continue
		case end == nil:
			say(i, "ended without a report: %v", p.cmd.ProcessState)
			continue
		}
		if end.Text != "" {
			kinds[end.Kind] = append(kinds[end.Kind], i)
		}
		switch {
		case r.fault.harmless:
			if end.Text != "" || end.Steps != r.Steps {
				say(i, "failed in step %d: %s", end.Steps, end.Text)
			}
		case end.Text == "":
			if !over && !r.fault.tolerated {
				say(i, "has no error")
			}
		case r.fault.name == mtusDiffer && strings.Contains(end.Text, "wait for each other"):
			say(i, "does not blame the network: %s", end.Text)
		case r.fault.either && strings.Contains(end.Text, fmt.Sprintf("rank %d", r.Victim)):
		case r.fault.disagree && end.Peer == mscclgo.NoRank && end.Kind == mscclgo.ErrInvalid.Error():
		case r.fault.name == killedEarly && neverCame(end):
			o.missed = true
		case end.Peer != r.Victim && !r.accepts(end):
			say(i, "blames rank %d: %s", end.Peer, end.Text)
		}
		switch {
		case !r.reform || end.Text == "":
		case end.Again == "right":
			o.again = true
		default:
			say(i, "did not go on with others: %s", end.Again)
		}
		patience := closePatience
		if r.fault.pairs && r.slack > 0 {
			patience = time.Duration(r.slack * float64(pairCloses))
		}
		if took := time.Duration(p.ended - end.Time); end.Text != "" && !r.reform && took > patience {
			say(i, "took %v to close after its error", took)
		}
		if end.Text != "" && i != r.Victim && began != 0 {
			if late := time.Duration(end.Time - began); late >= o.late {
				o.late, o.last = late, fmt.Sprintf("at rank %d: %s", i, end.Text)
				if end.Told != 0 {
					o.last = fmt.Sprintf("%v after it was told, %s", time.Duration(end.Time-end.Told), o.last)
				}
			}
		}
	}
	if len(kinds) > 1 {
		o.wrong = append(o.wrong, fmt.Sprintf("the errors are of several kinds, by rank: %v", kinds))
	}
	for i, p := range ranks {
		if text := p.stderr.Bytes(); len(o.wrong) > 0 && !hung[i] && len(text) > 0 {
			say(i, "wrote: %s", text[max(0, len(text)-2000):])
		}
	}
	if began == 0 && failed > 0 && !r.fault.harmless {
		o.wrong = append(o.wrong, "it failed before the fault")
	}
	o.goes = r.fault.tolerated && failed == 0
	o.paused = r.paused(ranks, began, o.late)
	return o
}

// paused returns by how much a run's last error may be late. News wait for each rank that they pass
// while it does not run, a rank that makes no call returns no error, and one that is to find another's
// silence may begin to count anew once it runs again.
func (r *run) paused(ranks []*process, began int64, late time.Duration) (excuse time.Duration) {
	anew := time.Duration(0)
	for i, p := range ranks {
		if end := p.event("end"); end != nil && (i != r.Victim || !r.fault.beats) {
			sum, longest := paused(end.Pauses, began, began+int64(late))
			excuse += sum
			if r.fault.beats && longest >= r.Heartbeat/grace.GapShare {
				anew = r.Heartbeat
			}
		}
	}
	return excuse + anew
}

// killLauncher kills a launcher, whose ranks end with it.
func (r *run) killLauncher() (outcome, error) {
	cmd, err := r.command(nil, launchEnv+"="+strconv.Itoa(r.ranks), r.task.env(), "MSCCLGO_TRANSPORTS="+r.transports[0])
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

// calibrate returns how long a run without a fault takes.
func (c *config) calibrate(ctx context.Context) (time.Duration, error) {
	const runs = 3
	calm := *c
	calm.seed, calm.parallel = 1, 1
	began := time.Now()
	for number := range runs {
		r := calm.plan(faults[0], number, 0)
		o, err := r.do()
		if err != nil || len(o.all()) > 0 || ctx.Err() != nil {
			return 0, errors.Join(err, ctx.Err(), mscclgo.Errorf(mscclgo.ErrSystem, "soak", "a run without a fault: %q", o.all()))
		}
	}
	return time.Since(began) / runs, nil
}
