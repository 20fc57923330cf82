package launcher

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestRankStoppedAtItsStart checks that the others do not wait until their time is up for a
// rank that is stopped before it comes to the rendezvous, and that the launcher names it. It
// is the process that the launcher started, or one for which a shell waits.
func TestRankStoppedAtItsStart(t *testing.T) {
	exe := testerr.Must(os.Executable())(t)
	for name, program := range map[string][]string{"itself": {exe}, "in a shell": {"/bin/sh", "-c", `trap "" TERM; "$0" "$1"; exit $?`, exe}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			start := time.Now()
			code, err := Run(t.Context(), Options{Ranks: 3, Program: program[0], Args: append(program[1:], t.TempDir()), Env: []string{roleVariable + "=stopped"}, Grace: 30 * time.Second, Stdout: &out, Stderr: &out})
			if took := time.Since(start); took < time.Second || took > time.Minute {
				t.Errorf("it took %v", took)
			}
			var e *mscclgo.Error
			if code != 1 || !errors.As(err, &e) || e.Rank != 1 || !strings.Contains(err.Error(), "it is stopped (process ") {
				t.Errorf("Run = %d, %v", code, err)
			}
			if n := strings.Count(out.String(), "rank 1, without which the group cannot form, is stopped (process "); n != 2 {
				t.Errorf("%d ranks of 2 name it: %s", n, &out)
			}
		})
	}
}

// TestLastRankStopped looks at a rank that is stopped when the others have ended well. The launcher says so once, and
// goes on when the rank does. An hour between two looks, in which the launcher was stopped too, counts as nothing.
func TestLastRankStopped(t *testing.T) {
	var log bytes.Buffer
	meet := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", nil))(t)
	defer meet.Close()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "kill -STOP $$; exec sleep 60")
	testerr.Check(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for !procfs.Stopped(cmd.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	j := job{ranks: []*rank{{number: 0, ended: true}, {number: 1, cmd: cmd}}, meet: meet, log: slog.New(slog.NewTextHandler(&log, nil)), stops: map[int]*halt{}}
	now := time.Now()
	look := func(looks int, after time.Duration, want int) {
		t.Helper()
		for range looks {
			now = now.Add(after)
			j.look(now)
		}
		if got := strings.Count(log.String(), "rank=1 process="+strconv.Itoa(cmd.Process.Pid)); got != want {
			t.Errorf("it was told %d times, want %d: %s", got, want, &log)
		}
	}
	look(100, lookInterval, 0) // the other runs
	j.ended = []end{{rank: 0}}
	j.stops = map[int]*halt{}
	look(2, time.Hour, 0)
	look(15, lookInterval, 0)
	look(25, lookInterval, 1)
	cmd.Process.Signal(syscall.SIGCONT)
	for procfs.Stopped(cmd.Process.Pid) {
		time.Sleep(time.Millisecond)
	}
	look(1, lookInterval, 1)
	if len(j.stops) != 0 {
		t.Error("a rank that goes on counts as stopped")
	}
}

// TestStoppedRankIsToldOf runs a rank that stops, and goes on once the launcher has said so.
func TestStoppedRankIsToldOf(t *testing.T) {
	const script = `[ $RANK = 1 ] || exit 0; kill -STOP $$; echo goes on`
	var out bytes.Buffer
	var log continuing
	code, err := Run(t.Context(), Options{Ranks: 3, Program: "/bin/sh", Args: []string{"-c", script}, Stdout: &out, Stderr: &out, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if code != 0 || err != nil || out.String() != "goes on\n" {
		t.Errorf("Run = %d, %v, and the output is %q", code, err, &out)
	}
	if n := strings.Count(log.String(), "is stopped"); n != 1 || !strings.Contains(log.String(), "rank=1") {
		t.Errorf("it was told %d times: %s", n, &log)
	}
}

// continuing is a log that has each process go on that it names as stopped.
type continuing struct{ bytes.Buffer }

func (c *continuing) Write(line []byte) (int, error) {
	if m := regexp.MustCompile(`is stopped.* process=(\d+)`).FindSubmatch(line); m != nil {
		pid, _ := strconv.Atoi(string(m[1]))
		syscall.Kill(pid, syscall.SIGCONT)
	}
	return c.Buffer.Write(line)
}

// TestInterruptStopped ends ranks that are stopped, and would notice no signal but one that has them go on.
func TestInterruptStopped(t *testing.T) {
	cmd, output := start(t, "launch", `echo $$; kill -STOP $$; exec sleep 60`)
	for _, text := range pids(t, output) {
		pid := testerr.Must(strconv.Atoi(text))(t)
		for !procfs.Stopped(pid) {
			time.Sleep(time.Millisecond)
		}
	}
	cmd.Process.Signal(syscall.SIGINT)
	text, _ := io.ReadAll(output)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("the launcher exited with %d, want 130: %s", code, text)
	}
}
