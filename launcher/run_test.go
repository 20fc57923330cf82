package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// shell runs ranks of a shell script and fails the test if that takes long.
func shell(t *testing.T, ranks int, script string, change ...func(*Options)) (code int, output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	o := Options{Ranks: ranks, Program: "/bin/sh", Args: []string{"-c", script}, Stdout: &out, Stderr: &out}
	for _, c := range change {
		c(&o)
	}
	code, err = Run(ctx, o)
	if ctx.Err() != nil {
		t.Fatalf("the ranks had to be ended after 30 s: %v\n%s", err, &out)
	}
	return code, out.String(), err
}

// failure checks that err names the rank and returns its text.
func failure(t *testing.T, err error, rank int) string {
	t.Helper()
	var e *mscclgo.Error
	if !errors.As(err, &e) || !errors.Is(err, mscclgo.ErrRemote) || e.Rank != rank {
		t.Fatalf("error %v is no ErrRemote of rank %d", err, rank)
	}
	return err.Error()
}

func TestSuccess(t *testing.T) {
	code, out, err := shell(t, 3, `echo "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE ${MSCCLGO_ID:+id} $EXTRA"`,
		func(o *Options) { o.Env = []string{"EXTRA=more", "WORLD_SIZE=7"} })
	if code != 0 || err != nil {
		t.Fatalf("Run = %d, %v", code, err)
	}
	for r := range 3 {
		if want := fmt.Sprintf("%d 3 %d 3 id more\n", r, r); !strings.Contains(out, want) {
			t.Errorf("output %q lacks %q", out, want)
		}
	}
}

// TestMaster looks for what PyTorch's env:// needs, alike for all ranks, and for what the caller has set.
func TestMaster(t *testing.T) {
	t.Setenv("MASTER_ADDR", "")
	t.Setenv("MASTER_PORT", "")
	_, out, err := shell(t, 2, `echo "at $MASTER_ADDR:$MASTER_PORT"`)
	places := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(places) != 2 || places[0] != places[1] || !regexp.MustCompile(`at 127\.0\.0\.1:[1-9]\d+$`).MatchString(places[0]) {
		t.Errorf("%v, output %q", err, out)
	}
	if _, out, err = shell(t, 1, `echo "at $MASTER_ADDR:$MASTER_PORT"`, func(o *Options) { o.Env = []string{"MASTER_PORT=7"} }); err != nil || !strings.Contains(out, "at 127.0.0.1:7\n") {
		t.Errorf("with a port in Options.Env: %v, output %q", err, out)
	}
	t.Setenv("MASTER_ADDR", "here")
	if _, out, err = shell(t, 1, `echo "at $MASTER_ADDR:$MASTER_PORT"`); err != nil || !strings.Contains(out, "at here:\n") {
		t.Errorf("with an address in the environment: %v, output %q", err, out)
	}
}

func TestManyRanks(t *testing.T) {
	code, err := Run(t.Context(), Options{Ranks: 64, Program: "true"})
	if code != 0 || err != nil {
		t.Fatalf("Run = %d, %v", code, err)
	}
}

func TestExitCode(t *testing.T) {
	// Ranks 0 and 1 would run for a minute: rank 2 has to end them.
	code, _, err := shell(t, 3, `[ $RANK = 2 ] && exit 3; exec sleep 60`)
	if code != 3 {
		t.Errorf("code %d, want 3", code)
	}
	text := failure(t, err, 2)
	if want := "exited with code 3; of the others, 0-1 were ended by SIGTERM"; !strings.Contains(text, want) {
		t.Errorf("error %q lacks %q", text, want)
	}
}

func TestRankKilledBySignal(t *testing.T) {
	code, _, err := shell(t, 2, `[ $RANK = 1 ] && kill -SEGV $$; exec sleep 60`)
	if code != 128+int(syscall.SIGSEGV) {
		t.Errorf("code %d, want %d", code, 128+int(syscall.SIGSEGV))
	}
	if text := failure(t, err, 1); !strings.Contains(text, "was ended by SIGSEGV") {
		t.Errorf("error %q does not name the signal", text)
	}
}

func TestGrace(t *testing.T) {
	// Rank 0 refuses to end. It fails rank 1 once it does so.
	ready := t.TempDir() + "/ready"
	script := `if [ $RANK = 0 ]; then trap '' TERM; touch ` + ready + `; while :; do sleep 0.05; done; fi
		until [ -e ` + ready + ` ]; do sleep 0.02; done; exit 1`
	_, _, err := shell(t, 2, script, func(o *Options) { o.Grace = 200 * time.Millisecond })
	if text := failure(t, err, 1); !strings.Contains(text, "of the others, 0 was ended by SIGKILL") {
		t.Errorf("error %q does not say that rank 0 was killed", text)
	}
}

func TestGrandchildrenEnd(t *testing.T) {
	dir := t.TempDir()
	// The shell of rank 0 stays, as its sleep does; both hold the output open.
	script := `if [ $RANK = 0 ]; then sleep 60 & echo $! >` + dir + `/tmp; mv ` + dir + `/tmp ` + dir + `/pid; wait; fi
		until [ -e ` + dir + `/pid ]; do sleep 0.02; done; exit 1`
	_, _, err := shell(t, 2, script)
	failure(t, err, 1)
	pid := testerr.Must(os.ReadFile(dir + "/pid"))(t)
	waitGone(t, strings.TrimSpace(string(pid)))
}

func TestEscapedGrandchildHoldsOutput(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("no setsid program")
	}
	escaped := t.TempDir() + "/escaped"
	start := time.Now()
	code, out, err := shell(t, 1, `setsid sh -c 'touch `+escaped+`; exec sleep 60' &
		until [ -e `+escaped+` ]; do sleep 0.02; done; echo said`)
	if code != 0 || err != nil || out != "said\n" {
		t.Errorf("Run = %d, %v, output %q", code, err, out)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("Run waited %v for a process that left the group", took)
	}
}

// A process that left the group writes for a minute, slowly or as fast as it can.
func TestEscapedGrandchildWrites(t *testing.T) {
	for _, tool := range []string{"setsid", "timeout"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no program " + tool)
		}
	}
	for _, writes := range []string{"while sleep 0.01; do echo more; done", "yes"} {
		escaped := t.TempDir() + "/escaped"
		start := time.Now()
		code, _, err := shell(t, 1, `setsid sh -c 'touch `+escaped+`; exec timeout 60 sh -c "`+writes+`"' &
			until [ -e `+escaped+` ]; do sleep 0.02; done`, func(o *Options) { o.Stdout = io.Discard })
		if code != 0 || err != nil {
			t.Errorf("Run = %d, %v", code, err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%q: Run waited %v for a process that left the group", writes, took)
		}
	}
}

func TestContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	code, err := Run(ctx, Options{Ranks: 2, Program: "sleep", Args: []string{"60"}})
	if code != 1 || !errors.Is(err, mscclgo.ErrTimeout) || !strings.Contains(err.Error(), "0-1 were ended by SIGTERM") {
		t.Errorf("Run = %d, %v", code, err)
	}
}

func TestBadOptions(t *testing.T) {
	notExecutable := t.TempDir() + "/file"
	testerr.Check(t, os.WriteFile(notExecutable, nil, 0o600))
	for _, c := range []struct {
		name string
		o    Options
		code int
	}{
		{"no ranks", Options{Program: "true"}, 2},
		{"more ranks than a group has", Options{Ranks: bootstrap.MaxSize + 1, Program: "true"}, 2},
		{"no program", Options{Ranks: 1}, 2},
		{"negative grace", Options{Ranks: 1, Program: "true", Grace: -1}, 2},
		{"unknown program", Options{Ranks: 1, Program: "mscclgo-no-such-program"}, 127},
		{"not executable", Options{Ranks: 1, Program: notExecutable}, 126},
	} {
		code, err := Run(t.Context(), c.o)
		if code != c.code || !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: Run = %d, %v, want code %d and an ErrInvalid", c.name, code, err, c.code)
		}
	}
}

func TestProgramThatCannotStart(t *testing.T) {
	file := t.TempDir() + "/garbage"
	testerr.Check(t, os.WriteFile(file, []byte("no program"), 0o700))
	code, err := Run(t.Context(), Options{Ranks: 2, Program: file})
	if code != 126 || !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("Run = %d, %v", code, err)
	}
}

func TestStdin(t *testing.T) {
	for _, kind := range []string{"reader", "file"} {
		code, out, err := shell(t, 2, `echo "$RANK:$(cat)"`, func(o *Options) {
			o.Stdin = strings.NewReader("typed")
			if kind == "file" {
				o.Stdin = inputFile(t, "typed")
			}
		})
		if code != 0 || err != nil {
			t.Fatalf("%s: Run = %d, %v", kind, code, err)
		}
		if !strings.Contains(out, "0:typed\n") || !strings.Contains(out, "1:\n") {
			t.Errorf("%s: output %q: rank 0 alone should have read the input", kind, out)
		}
	}
}

func inputFile(t *testing.T, content string) *os.File {
	t.Helper()
	name := t.TempDir() + "/input"
	testerr.Check(t, os.WriteFile(name, []byte(content), 0o600))
	f := testerr.Must(os.Open(name))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestOutputCannotBeWritten(t *testing.T) {
	// Without the error the ranks would print forever. It is told once.
	code, _, err := shell(t, 3, `while echo line; do :; done`, func(o *Options) { o.Stdout = brokenWriter{} })
	if code == 0 || !errors.Is(err, mscclgo.ErrSystem) || strings.Count(err.Error(), "disk full") != 1 {
		t.Errorf("Run = %d, %v", code, err)
	}
}

// waitGone waits until a process is no more, or is a zombie that only its
// parent's wait keeps.
func waitGone(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return
		}
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "Z") {
			return
		}
	}
	t.Errorf("process %s still runs", pid)
}

func TestInvalidOptions(t *testing.T) {
	for _, o := range []Options{
		{Program: "true"},
		{Program: "true", Ranks: -1},
		{Program: "true", Ranks: bootstrap.MaxSize + 1}, // starts none
		{Ranks: 1},
		{Program: "true", Ranks: 1, Grace: -1},
	} {
		if code, err := Run(t.Context(), o); code != exitUsage || !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%+v: %d, %v", o, code, err)
		}
	}
}

// TestOtherSignals has another source than this process deliver signals, which may end.
func TestOtherSignals(t *testing.T) {
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGUSR1 // for this process it would be the end
	signals <- syscall.SIGTERM
	close(signals)
	code, _, err := shell(t, 2, `exec sleep 60`, func(o *Options) { o.Signals = signals })
	if code != 128+int(syscall.SIGUSR1) && code != 128+int(syscall.SIGTERM) {
		t.Errorf("Run = %d, %v", code, err)
	}
}
