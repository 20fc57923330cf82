package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	root "github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// heartbeat is when ps takes a rank of this machine for silent: the default of
// communicator.Options.HeartbeatTimeout.
const heartbeat = 5 * time.Second

// running is a job with a rank on this machine.
type running struct {
	*watch.Job
	holders []int // processes that hold a board of it
}

func ps(c *call) error {
	asJSON := c.flags.Bool("json", false, "print JSON")
	if err := c.parse(); err != nil {
		return err
	}
	if c.flags.NArg() > 1 {
		return &usageError{"it takes one job at most"}
	}
	v, err := look(c.flags.Arg(0))
	if err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(c.stdout)
		e.SetIndent("", "  ")
		return e.Encode(v.jobs)
	}
	if len(v.jobs) == 0 {
		_, err := fmt.Fprintln(c.stdout, "no job runs here as this user")
		return err
	}
	for i, j := range v.jobs {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		if err := j.print(c.stdout); err != nil {
			return err
		}
	}
	return nil
}

// A view is what the jobs of this machine do at one time.
type view struct {
	at   time.Time
	jobs []psJob
}

// errNoJob is wrapped by the error of a job that does not run.
var errNoJob = errors.New("no job")

// look returns a view of one job, or of all. It is an error if a job is named that is not
// there.
func look(which string) (view, error) {
	v := view{at: time.Now(), jobs: []psJob{}}
	for _, j := range findJobs("/proc") {
		if which == "" || j.is(which) {
			v.jobs = append(v.jobs, j.describe())
		}
	}
	if which != "" && len(v.jobs) == 0 {
		return v, fmt.Errorf("%w %s runs here as this user: neither a job's id nor the process of a rank", errNoJob, which)
	}
	return v, nil
}

// findJobs finds the jobs of this user, the oldest first: the ranks of a host share a
// board in a memory file, which is open in one of their processes. No secret is asked for:
// a user who may open the descriptors of a process may read its memory too, with the secret.
func findJobs(proc string) []running {
	found := map[uint64]*running{}
	links, _ := filepath.Glob(proc + "/[0-9]*/fd/*")
	for _, link := range links {
		// Others' processes, and processes that have just ended, cannot be read.
		if name, err := os.Readlink(link); err != nil || !strings.HasPrefix(name, "/memfd:"+watch.BoardName+" ") {
			continue
		}
		file, err := os.Open(link)
		if err != nil {
			continue
		}
		job, err := watch.ReadBoard(file)
		file.Close()
		if err != nil {
			continue // of another version, or no board
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if known := found[job.ID]; known == nil {
			found[job.ID] = &running{job, []int{pid}}
		} else {
			known.add(job, pid)
		}
	}
	var jobs []running
	for _, j := range found {
		jobs = append(jobs, *j)
	}
	slices.SortFunc(jobs, func(a, b running) int { return a.Started.Compare(b.Started) })
	return jobs
}

// add adds what another board of the job shows: of each rank the latest.
func (r *running) add(j *watch.Job, holder int) {
	r.holders = append(r.holders, holder)
	for i := range r.Ranks {
		if i < len(j.Ranks) && j.Begun[i] && (!r.Begun[i] || j.Heard[i] < r.Heard[i] || j.Ranks[i].Left) {
			r.Ranks[i], r.Heard[i], r.Begun[i] = j.Ranks[i], j.Heard[i], true
		}
	}
}

func (r *running) id() string { return fmt.Sprintf("%016x", r.ID) }

// is reports whether the job has this id, or begins so, or a rank with this process.
func (r *running) is(which string) bool {
	pid, err := strconv.Atoi(which)
	if err == nil && (slices.Contains(r.holders, pid) || slices.ContainsFunc(r.Ranks, func(k watch.Rank) bool { return k.Status != nil && int(k.Process) == pid })) {
		return true
	}
	return len(which) >= 4 && strings.HasPrefix(r.id(), strings.ToLower(which))
}

// psJob is a job in JSON.
type psJob struct {
	ID      string    `json:"id"`
	Started time.Time `json:"started"`
	Ranks   []psRank  `json:"ranks"`
	Verdict string    `json:"verdict,omitempty"` // so far
	Culprit *int      `json:"culprit,omitempty"` // the rank to look at first, if it is one
}

// psRank is a rank in JSON.
type psRank struct {
	Rank   int     `json:"rank"`
	State  string  `json:"state"` // running, stopped, silent, left, or unknown
	Host   string  `json:"host,omitempty"`
	PID    uint32  `json:"pid,omitempty"`
	Device string  `json:"device,omitempty"`
	Heard  float64 `json:"heard_seconds_ago"` // of other hosts, by their clocks

	Call     uint64     `json:"call"`
	CallText string     `json:"call_text,omitempty"`
	Waits    []psWait   `json:"waits"`
	Exchange *psWait    `json:"exchange,omitempty"` // that it is in, of kind exchange, which waits for any rank
	Launches []psLaunch `json:"launches"`
	Serving  *psServing `json:"serving,omitempty"`
	Doing    []string   `json:"doing"` // the same in words
}

// psWait is a wait in JSON, in the group of the job or in another group of the rank's process. Where
// outside is true, peer is no rank of the job: it is a number in the outer group, that from
// which the job's group came by being split.
type psWait struct {
	Kind    string  `json:"kind"`            // signal, barrier, host barrier, ring, room, message, exchange, pair
	Group   string  `json:"group,omitempty"` // outer, part of this one, or another; none for this one
	Channel uint32  `json:"channel,omitempty"`
	Name    string  `json:"name,omitempty"`
	Peer    int     `json:"peer"` // or -1
	Outside bool    `json:"outside,omitempty"`
	Block   int     `json:"block"`
	Signal  uint64  `json:"signal,omitempty"` // that is awaited, from 1
	Seconds float64 `json:"seconds"`
	Ended   bool    `json:"deadline_passed"`
}

type psLaunch struct {
	Stream  int    `json:"stream"`
	Number  uint64 `json:"number"` // among the stream's
	Kernel  string `json:"kernel"`
	Nth     uint64 `json:"nth"` // of that kernel in its group
	Blocks  uint32 `json:"blocks"`
	Threads uint32 `json:"threads"`
	Hash    string `json:"arguments_hash"`
	Ended   bool   `json:"ended"`
}

type psServing struct {
	Kind    uint8   `json:"kind"`
	Seconds float64 `json:"seconds"`
}

// describe judges the job so far.
func (r *running) describe() psJob {
	j := psJob{ID: r.id(), Started: r.Started}
	for i, k := range r.Ranks {
		p := psRank{Rank: i, Heard: r.Heard[i].Seconds(), Waits: []psWait{}, Launches: []psLaunch{}, Doing: []string{}}
		switch {
		case k.Left:
			p.State = "left"
		case k.Stopped:
			p.State = "stopped"
		case r.Heard[i] >= heartbeat:
			p.State = "silent"
		case k.Status == nil:
			p.State = "unknown"
		default:
			p.State = "running"
		}
		if s := k.Status; s != nil {
			p.describe(s)
		}
		j.Ranks = append(j.Ranks, p)
	}
	if v, ok := watch.SoFar(r.Ranks, watch.Limits{Silence: heartbeat, Stuck: time.Second / 2}); ok {
		j.Verdict = v.Text
		if v.Culprit != root.NoRank {
			j.Culprit = &v.Culprit
		}
	}
	return j
}

func (p *psRank) describe(s *watch.Status) {
	p.Host, p.PID, p.Device = s.Host, s.Process, s.Device
	p.Call, p.CallText = s.Call, s.CallText
	p.Doing = append(p.Doing, s.Doing(p.Rank)...)
	for _, w := range s.Waits {
		p.Waits = append(p.Waits, describeWait(w))
	}
	if s.Exchanging > 0 {
		w := describeWait(watch.Wait{Kind: watch.Exchange, Peer: root.NoRank, For: s.Exchanging, Ended: s.ExchangeEnded})
		p.Exchange = &w
	}
	for _, l := range s.Launches {
		p.Launches = append(p.Launches, psLaunch{l.Stream, l.Number, l.Kernel, l.Nth, l.Blocks, l.Threads, fmt.Sprintf("%08x", l.Hash), l.Ended})
	}
	if s.Serving > 0 {
		p.Serving = &psServing{s.Trigger, s.Serving.Seconds()}
	}
}

var (
	waitKinds  = map[watch.Kind]string{watch.Signal: "signal", watch.Barrier: "barrier", watch.Host: "host barrier", watch.Ring: "ring", watch.Room: "room", watch.Message: "message", watch.Exchange: "exchange", watch.Pair: "pair"}
	waitGroups = map[watch.Where]string{watch.Outer: "outer", watch.Part: "part", watch.Elsewhere: "another"}
)

func describeWait(w watch.Wait) psWait {
	return psWait{Kind: waitKinds[w.Kind], Group: waitGroups[w.Where], Channel: w.Channel, Name: w.Name, Peer: w.Peer, Outside: w.Outside,
		Block: w.Block, Signal: w.Number, Seconds: w.For.Seconds(), Ended: w.Ended}
}

// waiting returns the rank's waits in the group of the job.
func (r psRank) waiting() (waits []psWait) {
	for _, w := range r.Waits {
		if w.Group == "" {
			waits = append(waits, w)
		}
	}
	if r.Exchange != nil {
		waits = append(waits, *r.Exchange)
	}
	return waits
}

// call describes the rank's last call.
func (r psRank) call() string {
	if r.Call == 0 {
		return "-"
	}
	return strings.TrimSuffix(fmt.Sprintf("%d, %s", r.Call, r.CallText), ", ")
}

// print prints the job for people.
func (j psJob) print(w io.Writer) error {
	fmt.Fprintf(w, "job %s, %d ranks, for %v\n", j.ID, len(j.Ranks), time.Since(j.Started).Round(time.Second))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RANK\tHOST\tPID\tDEVICE\tSTATE\tHEARD\tCALL")
	for _, r := range j.Ranks {
		heard := "-"
		if r.State != "left" && r.State != "unknown" {
			heard = time.Duration(r.Heard * float64(time.Second)).Round(time.Millisecond).String()
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%s\t%s\t%s\n", r.Rank, r.Host, r.PID, r.Device, r.State, heard, r.call())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range j.Ranks {
		for _, line := range r.Doing {
			fmt.Fprintf(w, "rank %d %s\n", r.Rank, line)
		}
	}
	if j.Verdict != "" {
		fmt.Fprintf(w, "so far: %s\n", j.Verdict)
	}
	return nil
}
