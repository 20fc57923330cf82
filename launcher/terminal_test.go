package launcher

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// terminal opens a pseudoterminal: what is written to keys is typed at tty.
func terminal(t *testing.T) (keys, tty *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminals here: %v", err)
	}
	t.Cleanup(func() { keys.Close() })
	testerr.Check(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	number := testerr.Must(unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN))(t)
	tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudoterminals here: %v", err)
	}
	t.Cleanup(func() { tty.Close() })
	return keys, tty
}

// at makes cmd the leader of a session at the terminal.
func at(tty *os.File, cmd *exec.Cmd) *exec.Cmd {
	cmd.Stdin = tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return cmd
}

func TestTerminal(t *testing.T) {
	keys, tty := terminal(t)
	cmd := at(tty, program(t, "launch", `read line && echo "read $line"; exec sleep 60`))
	output := run(t, cmd)
	io.WriteString(keys, "typed\n")
	if line, err := output.ReadString('\n'); line != "[0] read typed\n" {
		t.Errorf("output %q, %v: rank 0 should have read what was typed", line, err)
	}
	io.WriteString(keys, "\x03") // Ctrl-C
	rest, _ := io.ReadAll(output)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("the launcher exited with %d after Ctrl-C, want 130: %s", code, rest)
	}
}

// TestBackground starts the launcher from a shell as a background job, which
// the kernel stops if it reads the terminal.
func TestBackground(t *testing.T) {
	_, tty := terminal(t)
	cmd := program(t, "launch", `read line; echo "end of input"`)
	cmd.Args = []string{"sh", "-m", "-c", `"$@" & wait $!`, "sh", cmd.Path, cmd.Args[1]}
	cmd.Path = "/bin/sh"
	output := run(t, at(tty, cmd))
	text := testerr.Must(io.ReadAll(output))(t)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(string(text), "[0] end of input\n") {
		t.Errorf("the launcher exited with %d and printed %q", code, text)
	}
}
