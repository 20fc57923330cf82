package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// exploreFile is a file that ranks of TestExplore make, in the mode "again".
const exploreFile = "MSCCLGO_TEST_EXPLORE_FILE"

// exploredRank is what ranks of TestExplore do at last.
func exploredRank(rank int, buffer *gpu.Buffer) error {
	mode := os.Getenv(raceVariable)
	if mode == "panics" && rank == 1 {
		panic("no result")
	}
	if (mode == "always" || mode == "fails") && rank == 1 {
		return errors.New("in any order")
	}
	if rank != 1 || mode != "checks" && mode != "relaxed" && mode != "again" {
		return nil
	}
	data := make([]byte, buffer.Size())
	if err := gpu.CopyOut(data, buffer); err != nil {
		return err
	}
	if mode == "again" {
		path := os.Getenv(exploreFile)
		if _, err := os.Stat(path); err == nil {
			return gpu.CopyOut(data, buffer) // not in the first run
		}
		return os.WriteFile(path, nil, 0o600)
	}
	for i := range 64 {
		if word := binary.LittleEndian.Uint32(data[4*(512+i):]); word != 7 {
			return fmt.Errorf("word %d is %d", i, word)
		}
	}
	return nil
}

// TestExplore finds a schedule in which ranks read too early, which fails again by its seed; one in
// which a load gets an old value behind a wait that does not acquire, unless memory is not weak; one
// of a program that fails in any order; none where there is a wait that does; and a program whose
// runs differ in more than the schedule.
func TestExplore(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(exploreFile, filepath.Join(t.TempDir(), "made"))
	for _, c := range []struct {
		mode, flags string
		code        int
		want        []string
	}{
		{"checks", "-runs 60 -shrink 30 -weak=false", exitFailed, []string{
			": rank 1: word ", "it fails too with ", " switches", "-weak=false -replay ", "of gather (launch 0 of stream 0) on rank ", "gather.cu:",
		}},
		{"relaxed", "-runs 60 -shrink 60", exitFailed, []string{
			": rank 1: word ", "it fails too with 1 of ", "on rank 1, in a load at gather.cu:14 gets an old value, not the value of the write at gather.cu:5 (in mscclgo/",
			"of gather on emu:0; what would order them: a signal after the first, with __syncthreads before it, and a wait before the second, which acquires at system scope",
		}},
		{"relaxed", "-runs 4 -weak=false", exitOK, []string{"no failure in 4 runs"}},
		{"always", "-runs 4 -shrink 5", exitFailed, []string{"it fails too with none of ", "and then: rank 1: in any order"}},
		{"waits", "-runs 4", exitOK, []string{"no failure in 4 runs"}},
		{"panics", "-runs 4", exitFailed, []string{"seed 1 (", "ended while its group ran", "panic: no result", "before its schedule was written", "-replay 1"}},
		{"again", "-runs 4", exitFailed, []string{"the same schedule did not run twice", "the goroutine of rank 1"}},
	} {
		t.Setenv(raceVariable, c.mode)
		code, stdout, stderr := try(strings.Fields("explore -n 2 " + c.flags + " -- " + exe)...)
		if code != c.code {
			t.Errorf("%s: code %d, want %d\n%s%s", c.mode, code, c.code, stdout, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("%s: the output does not have %q:\n%s%s", c.mode, want, stdout, stderr)
			}
		}
		if strings.Contains(stdout, " at address ") {
			t.Errorf("%s: a line is not known:\n%s", c.mode, stdout)
		}
		if _, after, ok := strings.Cut(stdout, "again: mscclgo "); ok && c.mode == "checks" {
			again, _, _ := strings.Cut(after, "\n")
			_, first, _ := strings.Cut(strings.Split(stdout, "\n")[0], ": ")
			code, stdout, stderr := try(strings.Fields(strings.Replace(again, "explore", "explore -shrink 0", 1))...)
			if code != exitFailed || !strings.Contains(stdout, first) {
				t.Errorf("%s: code %d, without %q:\n%s%s", again, code, first, stdout, stderr)
			}
		}
	}
}

// TestExploreOverTime has the run that is to confirm a failure take too long: how the failure comes again is told all
// the same.
func TestExploreOverTime(t *testing.T) {
	var out strings.Builder
	e := &explorer{ctx: t.Context(), dir: t.TempDir(), ranks: 2, program: []string{"sleep", "100"}, limit: 10 * time.Millisecond, weak: true}
	err := e.tell(&out, explore.Plan{Seed: 7, Scheduler: explore.PCT}, explore.Outcome{Trace: make([]explore.Step, 1)}, "rank 1: wrong", 10)
	if err == nil || !strings.Contains(err.Error(), "has not ended in 10ms; -timeout") || !strings.Contains(out.String(), "seed 7 (pct): rank 1: wrong\nagain: mscclgo explore -n 2 -scheduler pct -replay 7 -- sleep 100\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestExploreOfOthers runs programs that have nothing to explore.
func TestExploreOfOthers(t *testing.T) {
	for _, c := range []struct {
		args, stderr string
		code         int
	}{
		{"explore", "which program", exitUsage},
		{"explore -n 0 true", "-n is from 1", exitUsage},
		{"explore -runs 0 true", "-runs", exitUsage},
		{"explore -seed 0 true", "-seed and -replay are 1 at least", exitUsage},
		{"explore -replay 0 true", "-seed and -replay are 1 at least", exitUsage},
		{"explore -scheduler fair true", "no scheduler", exitUsage},
		{"explore true", "ran no group", exitFailed},
		{"explore false", "ended before its group", exitFailed},
		{"explore -- mscclgo-no-such-program", "mscclgo explore: exec: \"mscclgo-no-such-program\": executable file not found", exitNotFound},
		{"explore -- " + os.DevNull, "permission denied", exitCannotRun},
		{"explore -timeout 1s sleep 100", "has not ended in 1s", exitFailed},
	} {
		code, _, stderr := try(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, %q", c.args, code, stderr)
		}
	}
}

// TestExploreInterrupted ends the command while a program runs: of both nothing is left, nor of its folder.
func TestExploreInterrupted(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		scene := testproc.New(t)
		p := scene.Start(nil, "explore", "-timeout", "1h", "--", "sleep", "3600")
		for deadline := time.Now().Add(time.Minute); !sleeps(scene); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the program does not run")
			}
		}
		if err := p.Cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		p.End(-1) // by the signal
		folder := filepath.Join(scene.Temp(), "mscclgo-explore-*")
		for deadline := time.Now().Add(time.Minute); s == syscall.SIGKILL; time.Sleep(10 * time.Millisecond) { // a shell cleans up
			if left, _ := filepath.Glob(folder); len(left) == 0 || time.Now().After(deadline) {
				break
			}
		}
	}
}

// sleeps reports whether one of the processes is the program sleep.
func sleeps(s *testproc.Scene) bool {
	for pid := range s.Processes() {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(name) == "sleep\n" {
			return true
		}
	}
	return false
}

// TestLastOutput writes more than is kept, in parts of several sizes.
func TestLastOutput(t *testing.T) {
	var all strings.Builder
	var kept lastOutput
	for i := range 300 {
		part := strings.Repeat(fmt.Sprint(i%10), i*997%(3*mostSaid)+1)
		all.WriteString(part)
		if n, err := kept.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
		want, more := all.String(), ""
		if len(want) > mostSaid {
			want, more = want[len(want)-mostSaid:], "..."
		}
		if kept.text() != more+want {
			t.Fatalf("after %d parts it is %q, want %q", i+1, kept.text(), more+want)
		}
	}
}
