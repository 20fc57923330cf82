package launcher

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// roleVariable makes this test binary another program, for tests in which the
// launcher must be a process of its own.
const roleVariable = "LAUNCHER_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "launch": // its argument is a script
		code, err := Run(context.Background(), Options{
			Ranks:   4,
			Program: "/bin/sh",
			Args:    []string{"-c", os.Args[1]},
			Stdin:   os.Stdin,
			Stdout:  os.Stdout,
			Stderr:  os.Stderr,
			Prefix:  true,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	case "blame":
		blameRank(os.Args[1])
	case "again":
		againRank()
	case "late":
		lateRank()
	case "leaves": // rank 1 ends well and does not come
		if os.Getenv("RANK") == "1" {
			os.Exit(0)
		}
		env, err := bootstrap.FromEnv(os.LookupEnv)
		if err == nil {
			_, err = bootstrap.Connect(context.Background(), env.Options)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	case "stopped": // rank 1 stops itself before anything else
		if os.Getenv("RANK") == "1" {
			goesOn := make(chan os.Signal, 1)
			signal.Notify(goesOn, syscall.SIGCONT)
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			<-goesOn
			os.Exit(1)
		}
		signal.Ignore(syscall.SIGTERM) // the launcher's, when the first has failed: all tell what they hear
		env, err := bootstrap.FromEnv(os.LookupEnv)
		if err == nil {
			err = meet(os.Args[1], env.Options.Rank, 2)
		}
		if err == nil {
			env.Options.HeartbeatTimeout = time.Second
			_, err = bootstrap.Connect(context.Background(), env.Options)
		}
		fmt.Println(err)
		os.Exit(1)
	case "absent": // rank 1 ends well and never connects
		Self(2)
		env, err := bootstrap.FromEnv(os.LookupEnv)
		if err == nil && env.Options.Rank == 0 {
			_, err = bootstrap.Connect(context.Background(), env.Options)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "self":
		Self(3)
		fmt.Printf("rank %s of %s, arguments %q\n", os.Getenv("RANK"), os.Getenv("WORLD_SIZE"), os.Args[1:])
		if os.Getenv("RANK") == "1" {
			code, _ := strconv.Atoi(os.Args[1])
			os.Exit(code)
		}
	}
}

// start starts this binary in a role. The process is killed when the test ends.
func start(t *testing.T, role string, args ...string) (cmd *exec.Cmd, output *bufio.Reader) {
	t.Helper()
	cmd = program(t, role, args...)
	return cmd, run(t, cmd)
}

// program is a command that is this binary in a role.
func program(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	exe := testerr.Must(os.Executable())(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd
}

// run starts cmd and returns all that it will print.
func run(t *testing.T, cmd *exec.Cmd) (output *bufio.Reader) {
	t.Helper()
	out := testerr.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	testerr.Check(t, cmd.Start())
	return bufio.NewReader(out)
}

// pids reads the process id that each of the four ranks prints.
func pids(t *testing.T, output *bufio.Reader) []string {
	t.Helper()
	var pids []string
	for range 4 {
		line := testerr.Must(output.ReadString('\n'))(t)
		pids = append(pids, strings.Fields(line)[1])
	}
	return pids
}

func TestRanksDieWithTheLauncher(t *testing.T) {
	for name, script := range map[string]string{
		"ranks":              `echo $$; exec sleep 60`,
		"what they started":  `sleep 60 & echo $!; wait`,
		"what outlives them": `sleep 60 & echo $!; [ $RANK = 0 ] || wait`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd, output := start(t, "launch", script)
			all := pids(t, output)
			cmd.Process.Kill()
			cmd.Wait()
			for _, pid := range all {
				waitGone(t, pid)
			}
		})
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	// Each trap prints its signal; SIGTERM then ends the rank with a code. The
	// shell would also report each sleep that a signal ends.
	const script = `exec 2>/dev/null; trap 'echo got USR1' USR1; trap 'echo got HUP' HUP; trap 'echo got TERM; exit 7' TERM
		echo $$; while :; do sleep 0.02; done`
	cmd, output := start(t, "launch", script)
	pids(t, output)
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGHUP, syscall.SIGTERM} {
		if signal.Ignored(s) { // as under nohup: a shell cannot trap what it inherits so
			t.Logf("%v is ignored here", s)
			continue
		}
		cmd.Process.Signal(s)
		want := "got " + map[syscall.Signal]string{syscall.SIGUSR1: "USR1", syscall.SIGHUP: "HUP", syscall.SIGTERM: "TERM"}[s]
		for range 4 {
			line, err := output.ReadString('\n')
			if err != nil || !strings.Contains(line, want) {
				t.Fatalf("after %v: line %q, %v, want %q", s, line, err, want)
			}
		}
	}
	io.Copy(io.Discard, output)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("the launcher exited with %d, want 7", code)
	}
}

func TestInterrupt(t *testing.T) {
	cmd, output := start(t, "launch", `echo $$; exec sleep 60`)
	ranks := pids(t, output)
	cmd.Process.Signal(syscall.SIGINT)
	text, _ := io.ReadAll(output)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("the launcher exited with %d, want 130: %s", code, text)
	}
	for _, pid := range ranks {
		waitGone(t, pid)
	}
}

// A rank that ends without having connected, be it well, is not waited for.
func TestRankThatDoesNotConnect(t *testing.T) {
	_, output := start(t, "absent")
	got, _ := io.ReadAll(output)
	if !strings.Contains(string(got), "rank 1 exited with code 0 before all ranks had come") {
		t.Errorf("rank 0 says %q", got)
	}
}

func TestSelf(t *testing.T) {
	for _, want := range []int{0, 5} {
		cmd, output := start(t, "self", strconv.Itoa(want), "a b")
		text := testerr.Must(io.ReadAll(output))(t)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("Self exited with %d, want %d: %s", code, want, text)
		}
		if line := fmt.Sprintf("rank 1 of 3, arguments [\"%d\" \"a b\"]\n", want); !strings.Contains(string(text), line) {
			t.Errorf("output %q lacks %q", text, line)
		}
		if named := strings.Contains(string(text), "(rank 1)"); named != (want != 0) {
			t.Errorf("output %q: a failing rank is named exactly if one failed", text)
		}
	}
}

// meet returns when n ranks have called it with the same folder.
func meet(folder string, rank, n int) error {
	if err := os.WriteFile(filepath.Join(folder, strconv.Itoa(rank)), nil, 0o600); err != nil {
		return err
	}
	for {
		came, err := os.ReadDir(folder)
		if err != nil || len(came) == n {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
