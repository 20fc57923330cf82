package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// TestTop looks at a job that works, until it has ended.
func TestTop(t *testing.T) {
	all := startEndless(t, 2)
	pid := fmt.Sprint(all[0].Cmd.Process.Pid)

	// Between two looks the ranks make calls and launches.
	working := regexp.MustCompile(`(?m)^0 +` + pid + ` +emu:\d+ +running +[1-9][0-9.]* +[1-9][0-9.]* .*all-reduce of`)
	for end := time.Now().Add(25 * time.Second); ; {
		code, stdout, stderr := try("top", "-interval", "300ms", "-n", "2", pid)
		if code == exitOK && working.MatchString(stdout) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("top: %d\n%s%s", code, stdout, stderr)
		}
	}

	program := testerr.Must(os.Executable())(t)
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "top", "-interval", "50ms", pid)
	cmd.Env = append(os.Environ(), testproc.MainEnv+"=1")
	out := testerr.Must(cmd.StdoutPipe())(t)
	testerr.Check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Scan() // it has looked
	for _, p := range all {
		testerr.Report(t, p.Cmd.Process.Signal(syscall.SIGKILL))
	}
	for _, p := range all {
		p.End(-1)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if err := cmd.Wait(); err != nil || last != "the job has ended" {
		t.Errorf("when the job has ended: %v, %q", err, last)
	}
}

func TestTopUsage(t *testing.T) {
	for args, want := range map[string]string{
		"top -interval 1ms": "-interval", "top -n -1": "-n", "top 1 2": "one job",
	} {
		if code, _, stderr := try(strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s", args, code, stderr)
		}
	}
	if code, _, stderr := try("top", "1"); code != exitFailed || !strings.Contains(stderr, "no job 1 runs here") {
		t.Errorf("top 1: %d, %s", code, stderr)
	}
}

// TestTopWaits counts the waits of the job's group alone.
func TestTopWaits(t *testing.T) {
	r := psRank{State: "running", Waits: []psWait{{Kind: "barrier", Group: "part", Seconds: 9}, {Kind: "barrier", Seconds: 2}}, Exchange: &psWait{Kind: "exchange", Seconds: 3}}
	var out strings.Builder
	v := view{at: time.Now(), jobs: []psJob{{Ranks: []psRank{r}}}}
	testerr.Check(t, v.print(&out, view{}))
	if !regexp.MustCompile(`(?m)^0 .* 2 +3s +-$`).MatchString(out.String()) {
		t.Errorf("top prints\n%s", out.String())
	}
}

// TestRates compares what two looks saw.
func TestRates(t *testing.T) {
	r := psRank{Launches: []psLaunch{{Stream: 0, Number: 3}, {Stream: 0, Number: 7}, {Stream: 2, Number: 5}}}
	if n := r.launched(); n != 12 {
		t.Errorf("%d launches, want 12", n)
	}
	for want, got := range map[string]string{"2.5": rate(5, 10, 2), "0.0": rate(5, 5, 1), "-": rate(0, 5, 1) + rate(6, 5, 1)[1:]} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
