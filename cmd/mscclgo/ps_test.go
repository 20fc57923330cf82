package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// startEndless starts the ranks of a job that all-reduces until it is killed, and returns when
// it does.
func startEndless(t *testing.T, ranks int) (all []*testproc.Process) {
	t.Helper()
	s, id := testproc.New(t), testproc.NewRendezvous(t).ID()
	for rank := range ranks {
		env := append(testproc.RankEnv(id, rank, ranks), "MSCCLGO_HEARTBEAT_TIMEOUT=off", "MSCCLGO_DEVICE=emu")
		all = append(all, s.Start(env, allReduce(append([]string{"-algo", "oneShotLL16"}, endless...)...)...))
	}
	all[0].Says("# all-reduce")
	return all
}

// TestPs looks at a job while it works, while a rank of it is stopped and the others wait,
// and after it was killed.
func TestPs(t *testing.T) {
	all := startEndless(t, 3)
	victim := all[1].Cmd.Process
	see := func(what string, ok func(j psJob) bool) (j psJob) {
		t.Helper()
		for end := time.Now().Add(25 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			code, stdout, stderr := try("ps", "-json", fmt.Sprint(all[0].Cmd.Process.Pid))
			var jobs []psJob
			if code != exitOK {
				stdout = stderr
			} else if err := json.Unmarshal([]byte(stdout), &jobs); err != nil {
				t.Fatalf("%v: %s", err, stdout)
			} else if len(jobs) == 1 && len(jobs[0].Ranks) == 3 && ok(jobs[0]) {
				return jobs[0]
			}
			if time.Now().Add(time.Second).After(end) {
				t.Fatalf("%s is not shown:\n%s", what, stdout)
			}
		}
		return j
	}
	j := see("the job at work", func(j psJob) bool {
		for rank, r := range j.Ranks {
			if r.State != "running" || r.Call < 2 || len(r.Launches) == 0 || int(r.PID) != all[rank].Cmd.Process.Pid || !strings.HasPrefix(r.Device, "emu:") {
				return false
			}
		}
		return true
	})
	for _, which := range []string{j.ID, j.ID[:6], fmt.Sprint(victim.Pid)} {
		if code, stdout, stderr := try("ps", which); code != exitOK || !strings.Contains(stdout, "job "+j.ID+", 3 ranks") || !strings.Contains(stdout, "all-reduce of") {
			t.Errorf("ps %s: %d\n%s%s", which, code, stdout, stderr)
		}
	}

	testerr.Check(t, victim.Signal(syscall.SIGSTOP))
	j = see("the stopped rank", func(j psJob) bool {
		return j.Ranks[1].State == "stopped" && j.Culprit != nil && (len(j.Ranks[0].Waits) > 0 || len(j.Ranks[2].Waits) > 0)
	})
	if want := fmt.Sprintf("rank 1 is stopped (process %d)", victim.Pid); *j.Culprit != 1 || !strings.Contains(j.Verdict, want) {
		t.Errorf("the verdict is %d, %q", *j.Culprit, j.Verdict)
	}
	if code, stdout, _ := try("ps", j.ID); code != exitOK || !strings.Contains(stdout, "stopped") || !strings.Contains(stdout, "has waited") || !strings.Contains(stdout, "so far: rank 1 is stopped") {
		t.Errorf("%d: %s", code, stdout)
	}

	for _, p := range all {
		testerr.Report(t, p.Cmd.Process.Kill())
	}
	for _, p := range all {
		p.End(-1)
	}
	if code, stdout, stderr := try("ps", j.ID); code != exitFailed || !strings.Contains(stderr, "no job "+j.ID) {
		t.Errorf("after it was killed: %d %s%s", code, stdout, stderr)
	}
}

// TestPsGroups shows waits of other groups as such, and lets them give no verdict.
func TestPsGroups(t *testing.T) {
	waits := []watch.Wait{
		{Kind: watch.Exchange, Peer: 7, For: 3 * time.Second, Where: watch.Outer, Outside: true},
		{Kind: watch.Barrier, Peer: 1, For: 2 * time.Second, Ended: true, Where: watch.Part},
		{Kind: watch.Ring, Peer: 0, For: time.Second, Where: watch.Elsewhere},
		{Kind: watch.Pair, Name: "Connect", Peer: 1, For: time.Second / 2, Where: watch.Outer},
		{Kind: watch.Signal, Channel: 5, Peer: 1, For: time.Second / 4},
	}
	see := func(exchanging time.Duration) psJob {
		ranks := []watch.Rank{{Status: &watch.Status{Exchange: 9, Exchanging: exchanging, Waits: waits}}, {Status: &watch.Status{}}}
		r := running{Job: &watch.Job{Ranks: ranks, Heard: make([]time.Duration, 2), Begun: []bool{true, true}}}
		return r.describe()
	}
	j := see(0)
	if j.Verdict != "" {
		t.Errorf("the verdict is %q", j.Verdict)
	}
	text := testerr.Must(json.Marshal(j.Ranks[0].Waits))(t)
	const want = `[{"kind":"exchange","group":"outer","peer":7,"outside":true,"block":0,"seconds":3,"deadline_passed":false},` +
		`{"kind":"barrier","group":"part","peer":1,"block":0,"seconds":2,"deadline_passed":true},` +
		`{"kind":"ring","group":"another","peer":0,"block":0,"seconds":1,"deadline_passed":false},` +
		`{"kind":"pair","group":"outer","name":"Connect","peer":1,"block":0,"seconds":0.5,"deadline_passed":false},` +
		`{"kind":"signal","channel":5,"peer":1,"block":0,"seconds":0.25,"deadline_passed":false}]`
	testcmp.Equal(t, "the waits", string(text), want)
	if w := j.Ranks[0].waiting(); len(w) != 1 || w[0].Seconds != 0.25 {
		t.Errorf("in the group it waits %+v", w)
	}
	j = see(4 * time.Second)
	if w := j.Ranks[0].waiting(); len(w) != 2 || w[1].Kind != "exchange" || w[1].Seconds != 4 {
		t.Errorf("in an exchange it waits %+v", w)
	}
	if !strings.Contains(j.Verdict, "rank 1 did not come: rank 0 has waited 4s") {
		t.Errorf("in an exchange the verdict is %q", j.Verdict)
	}
}

func TestPsUsage(t *testing.T) {
	for args, want := range map[string]string{
		"ps a b":  "one job at most",
		"ps zzzz": "no job zzzz runs here",
		"ps -x":   "not defined: -x",
	} {
		if code, _, stderr := try(strings.Fields(args)...); code == exitOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d %q, want %q", args, code, stderr, want)
		}
	}
}
