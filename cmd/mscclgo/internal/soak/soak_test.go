package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

func TestMain(m *testing.M) {
	if os.Getenv(launchEnv)+os.Getenv(taskEnv)+os.Getenv(fillEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestSoak runs the faults once, but for faults that a wait's deadline ends: these have
// tests in package communicator. It does not check the promised times, since the machine
// may be busy: a soak on an idle one does.
func TestSoak(t *testing.T) {
	forbidDriver(t)
	c := config{
		seed: 11, runs: 1, ranks: 3, slack: 20, timeout: 20 * time.Second, heartbeat: 5 * time.Second, parallel: 1, device: "emu",
		steps: 20, most: 64 << 10, short: true, cache: t.TempDir(), // empty, to see what the filling leaves out
	}
	for _, f := range faults {
		if f.name == killedEarly || f.name == mtusDiffer || f.many { // which may take a minute, or a wait's deadline
			continue
		}
		if !f.waits || f.name == "other call" { // that is found at once
			c.faults = append(c.faults, f)
		}
	}
	testerr.Check(t, c.fill(t.Context()))
	testproc.KeepKernels(c.cache) // which other packages' tests need too
	var lines []string
	failed := testerr.Must(c.soak(t.Context(), func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf(format, args...))
		t.Log(lines[len(lines)-1])
	}))(t)
	if failed > 0 { // what went wrong comes last, where the ends of long logs are kept
		lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "-seed") })
		t.Errorf("%d runs failed:\n%s", failed, strings.Join(lines, "\n"))
	}
}

// forbidDriver ends each process that loads one of NVIDIA's libraries, which groups on emulated
// devices have no use for where they are installed.
func forbidDriver(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	const source = "#include <stdlib.h>\n__attribute__((constructor)) static void loaded(void) { abort(); }\n"
	testerr.Check(t, os.WriteFile(filepath.Join(dir, "forbidden.c"), []byte(source), 0o600))
	for _, name := range []string{"libnvidia-ml.so.1", "libcuda.so.1"} {
		out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, name), filepath.Join(dir, "forbidden.c")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}

// TestJudge checks that what is not as promised is noticed. Rank 1 is the victim.
func TestJudge(t *testing.T) {
	const began = 1000
	blame := func(peer int) report {
		return report{Event: "end", Time: began + 5, Text: "it failed", Kind: "remote failure", Peer: peer}
	}
	victim := []report{{Event: "fault", Time: began}}
	done := report{Event: "end", Steps: 9}
	for what, c := range map[string]struct {
		fault string
		ranks [3][]report
		hung  map[int]bool
		says  string // "" if all is as promised
	}{
		"all right":         {"abort", [3][]report{{blame(1)}, victim, {blame(1)}}, nil, ""},
		"another culprit":   {"abort", [3][]report{{blame(1)}, victim, {blame(0)}}, nil, "rank 2 blames rank 0"},
		"no culprit":        {"abort", [3][]report{{blame(-1)}, victim, {blame(1)}}, nil, "rank 0 blames rank -1"},
		"several kinds":     {"abort", [3][]report{{blame(1)}, victim, {{Event: "end", Text: "x", Kind: "timeout", Peer: 1}}}, nil, "of several kinds, by rank: map[remote failure:[0] timeout:[2]]"},
		"no error":          {"abort", [3][]report{{done}, victim, {blame(1)}}, nil, "rank 0 has no error"},
		"a crash":           {"abort", [3][]report{nil, victim, {blame(1)}}, nil, "rank 0 ended without a report"},
		"a hang":            {"abort", [3][]report{nil, victim, {blame(1)}}, map[int]bool{0: true}, "rank 0 did not end"},
		"wrong elements":    {"abort", [3][]report{{{Event: "end", Wrong: 7, Text: "x", Peer: 1}}, victim, {blame(1)}}, nil, "rank 0 found 7 wrong"},
		"slow to close":     {"abort", [3][]report{{blame(1)}, victim, {{Event: "end", Time: -int64(time.Minute), Text: "x", Peer: 1}}}, nil, "rank 2 took 1m0s to close"},
		"no fault":          {"none", [3][]report{{done}, {done}, {done}}, nil, ""},
		"a failure":         {"none", [3][]report{{done}, {blame(2)}, {done}}, nil, "rank 1 failed in step 0"},
		"a step too few":    {"none", [3][]report{{done}, {done}, {{Event: "end", Steps: 8}}}, nil, "rank 2 failed in step 8"},
		"killed when over":  {"killed", [3][]report{{done}, {{Event: "closing"}}, {done}}, nil, ""},
		"killed too early":  {"killed", [3][]report{{done}, {}, {done}}, nil, "rank 0 has no error"},
		"a leftover":        {"abort", [3][]report{{{Event: "end", Text: "x", Peer: 1, Left: []string{"a socket"}}}, victim, {blame(1)}}, nil, "rank 0 has left a socket"},
		"work goes on":      {"no memory", [3][]report{{done}, {done}, {done}}, nil, ""},
		"nobody is named":   {"no memory", [3][]report{{done}, {}, {blame(-1)}}, nil, "rank 2 blames rank -1"},
		"only a cycle":      {"no signal", [3][]report{{{Event: "end", Text: "ranks 0 and 1 wait for each other: channel 5", Peer: -1}}, victim, {blame(1)}}, nil, "rank 0 blames rank -1"},
		"either end":        {"socket cut", [3][]report{{{Event: "end", Text: "its connection to rank 1 broke", Kind: "remote failure", Peer: 2}}, {}, {blame(1)}}, nil, ""},
		"neither end":       {"socket cut", [3][]report{{{Event: "end", Text: "its connection to rank 0 broke", Peer: 2}}, {}, {blame(1)}}, nil, "rank 0 blames rank 2"},
		"left out, unaware": {"continued late", [3][]report{{blame(1)}, {done}, {blame(1)}}, nil, "rank 1 does not know"},
		"left out, hangs":   {"continued late", [3][]report{{blame(1)}, {}, {blame(1)}}, map[int]bool{1: true}, "rank 1 did not end"},
		"left out and told": {"continued late", [3][]report{{blame(1)}, {blame(-1)}, {blame(1)}}, nil, ""},
		"wrong when late":   {"continued late", [3][]report{{blame(1)}, {{Event: "end", Text: "x", Wrong: 3}}, {blame(1)}}, nil, "rank 1 found 3 wrong"},
		"stopped and blame": {"stopped", [3][]report{{blame(2)}, {}, {blame(1)}}, nil, "rank 0 blames rank 2"},
	} {
		t.Run(what, func(t *testing.T) {
			chosen := testerr.Must(choose(c.fault))(t)
			r := &run{task: task{Steps: 9, Victim: 1}, fault: chosen[0], ranks: 3}
			var ranks []*process
			for _, reports := range c.ranks {
				ranks = append(ranks, &process{cmd: new(exec.Cmd), reports: reports})
			}
			o := r.judge(ranks, c.hung, began)
			text := strings.Join(o.all(), "; ")
			if !strings.Contains(text, c.says) || c.says == "" && text != "" {
				t.Errorf("the outcome is %q, want %q", text, c.says)
			}
		})
	}
}

// TestJudgeGoesOn checks that survivors that were to go on together have done so.
func TestJudgeGoesOn(t *testing.T) {
	for again, says := range map[string]string{"right": "", "": "did not go on", "no server": "did not go on with others: no server"} {
		r := &run{task: task{Steps: 9, Victim: 1}, fault: faults[2], ranks: 2, reform: true}
		end := report{Event: "end", Time: 5, Text: "it failed", Peer: 1, Again: again}
		o := r.judge([]*process{{cmd: new(exec.Cmd), reports: []report{end}}, {cmd: new(exec.Cmd)}}, nil, 1)
		if text := strings.Join(o.all(), "; "); !strings.Contains(text, says) || says == "" && text != "" {
			t.Errorf("the outcome is %q, want %q", text, says)
		}
	}
}

// TestJudgeBusy checks that an error which is late is not held against ranks that did not run for so
// long, and only then. The promise is a second, and 5 s more where the heartbeat time-out must pass.
func TestJudgeBusy(t *testing.T) {
	const began, second = int64(1000), int64(time.Second)
	for what, c := range map[string]struct {
		fault  string
		late   time.Duration
		pauses [3][]pause
		busy   int
		wrong  bool
	}{
		"in time":                  {"killed", time.Second, [3][]pause{}, 0, false},
		"late":                     {"killed", 1100 * time.Millisecond, [3][]pause{}, 0, true},
		"one did not run":          {"killed", 1900 * time.Millisecond, [3][]pause{2: {{began, began + second, false}}}, 1, false},
		"several did not run":      {"killed", 2900 * time.Millisecond, [3][]pause{{{began, began + second, false}}, nil, {{began, began + second, false}}}, 1, false},
		"not for so long":          {"killed", 2900 * time.Millisecond, [3][]pause{2: {{began, began + second, false}}}, 0, true},
		"before the fault":         {"killed", 1900 * time.Millisecond, [3][]pause{2: {{began - second, began, false}}}, 0, true},
		"after the error":          {"killed", 1900 * time.Millisecond, [3][]pause{2: {{began + 2*second, began + 3*second, false}}}, 0, true},
		"silence counted anew":     {"stopped", 11 * time.Second, [3][]pause{2: {{began + second, began + 2*second, false}}}, 1, false},
		"own work is no reason":    {"stopped", 11 * time.Second, [3][]pause{2: {{began + second, began + 4*second, true}}}, 0, true},
		"own work delays":          {"stopped", 8 * time.Second, [3][]pause{2: {{began + second, began + 4*second, true}}}, 1, false},
		"a pause too short for it": {"stopped", 11 * time.Second, [3][]pause{2: {{began + second, began + 2*second - 1, false}}}, 0, true},
		"the stopped one's own":    {"stopped", 11 * time.Second, [3][]pause{1: {{began, began + 9*second, false}}}, 0, true},
	} {
		t.Run(what, func(t *testing.T) {
			chosen := testerr.Must(choose(c.fault))(t)
			r := &run{task: task{Victim: 1, Heartbeat: 5 * time.Second}, fault: chosen[0], ranks: 3}
			var ranks []*process
			for i, pauses := range c.pauses {
				end := report{Event: "end", Time: began + int64(c.late), Text: "it failed", Peer: 1, Pauses: pauses}
				if i == 1 {
					end.Time, end.Peer = began, -1
				}
				ranks = append(ranks, &process{cmd: new(exec.Cmd), reports: []report{end}, ended: end.Time})
			}
			f := r.fault
			f.bound = (&config{heartbeat: r.Heartbeat}).bound(f)
			var got tally
			if wrong := got.count(f, r.judge(ranks, nil, began), 1); len(wrong) > 0 != c.wrong || got.busy != c.busy {
				t.Errorf("%d runs were busy, and wrong is %q", got.busy, wrong)
			}
		})
	}
}

// TestPauses checks that the newest pauses are noted, and what of them counts.
func TestPauses(t *testing.T) {
	var p pauses
	start := time.Unix(100, 0)
	p.note(start, start.Add(pauseTick-1), false)
	if all := p.list(); len(all) > 0 {
		t.Errorf("a moment is noted: %v", all)
	}
	for i := range mostPauses + 1 {
		due := start.Add(time.Duration(i) * time.Second)
		p.note(due, due.Add(pauseTick), false)
	}
	all := p.list()
	if first := start.Add(time.Second); len(all) != mostPauses || all[0] != (pause{first.UnixNano(), first.Add(pauseTick).UnixNano(), false}) {
		t.Errorf("%d pauses, the first %v", len(all), all[0])
	}
	if sum, longest := paused([]pause{{0, 30, false}, {50, 90, true}, {100, 200, false}}, 10, 80); sum != 50 || longest != 20 {
		t.Errorf("paused = %v, %v, want 50 and 20 ns", sum, longest)
	}
}
