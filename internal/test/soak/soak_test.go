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
)

func TestMain(m *testing.M) {
	if os.Getenv(launchEnv)+os.Getenv(taskEnv)+os.Getenv(fillEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestSoak runs the faults once, but for those that a wait's deadline ends, which have
// tests in package communicator. The machine may be busy, so that the promised times,
// which a soak on an idle one checks, are not.
func TestSoak(t *testing.T) {
	forbidDriver(t)
	c := config{
		seed: 11, runs: 1, ranks: 3, slack: 20, timeout: 20 * time.Second, heartbeat: 5 * time.Second, parallel: 1, device: "emu",
		steps: 20, most: 64 << 10, short: true,
	}
	for _, f := range faults {
		if !f.waits || f.name == "other call" { // that is found at once
			c.faults = append(c.faults, f)
		}
	}
	var lines []string
	failed, err := c.soak(t.Context(), func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf(format, args...))
		t.Log(lines[len(lines)-1])
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(filepath.Join(dir, "forbidden.c"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
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
		"either end":        {"socket cut", [3][]report{{{Event: "end", Text: "its connection to rank 1 broke", Peer: 2}}, {}, {blame(1)}}, nil, ""},
		"neither end":       {"socket cut", [3][]report{{{Event: "end", Text: "its connection to rank 0 broke", Peer: 2}}, {}, {blame(1)}}, nil, "rank 0 blames rank 2"},
		"left out, unaware": {"continued late", [3][]report{{blame(1)}, {done}, {blame(1)}}, nil, "rank 1 does not know"},
		"left out, hangs":   {"continued late", [3][]report{{blame(1)}, {}, {blame(1)}}, map[int]bool{1: true}, "rank 1 did not end"},
		"left out and told": {"continued late", [3][]report{{blame(1)}, {blame(-1)}, {blame(1)}}, nil, ""},
		"wrong when late":   {"continued late", [3][]report{{blame(1)}, {{Event: "end", Text: "x", Wrong: 3}}, {blame(1)}}, nil, "rank 1 found 3 wrong"},
		"stopped and blame": {"stopped", [3][]report{{blame(2)}, {}, {blame(1)}}, nil, "rank 0 blames rank 2"},
	} {
		t.Run(what, func(t *testing.T) {
			chosen, err := choose(c.fault)
			if err != nil {
				t.Fatal(err)
			}
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
