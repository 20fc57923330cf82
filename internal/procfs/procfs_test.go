package procfs

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// start starts a shell script, which prints the process that it has stopped, and returns
// the shell's process and that one.
func start(t *testing.T, script string) (shell, stopped int) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := testerr.Must(cmd.StdoutPipe())(t)
	testerr.Check(t, cmd.Start())
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	})
	line := testerr.Must(bufio.NewReader(out).ReadString('\n'))(t)
	stopped = testerr.Must(strconv.Atoi(strings.TrimSpace(line)))(t)
	return cmd.Process.Pid, stopped
}

// TestStoppedIn checks which process is taken for stopped, and that a process with other
// work than to wait is not.
func TestStoppedIn(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		stopped bool
	}{
		"itself":          {`echo $$; kill -STOP $$`, true},
		"its child":       {`sh -c 'echo $$; kill -STOP $$'; :`, true},
		"a grandchild":    {`sh -c "sh -c 'echo \$\$; kill -STOP \$\$'; :"; :`, true},
		"one of two":      {`sleep 60 & sh -c 'echo $$; kill -STOP $$'; :`, false},
		"not waited for":  {`sh -c 'echo $$; kill -STOP $$' & while :; do :; done`, false},
		"none is stopped": {`sh -c 'echo $$; exec sleep 60'; :`, false},
	} {
		t.Run(name, func(t *testing.T) {
			shell, child := start(t, c.script)
			if c.stopped {
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
					if which, stopped := StoppedIn(shell); stopped && which == child {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("process %d, in %d, is not found to be stopped", child, shell)
					}
				}
				if Runs(child) {
					t.Errorf("process %d is stopped and runs", child)
				}
				syscall.Kill(child, syscall.SIGCONT)
				syscall.Kill(child, syscall.SIGKILL)
				return
			}
			for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if which, stopped := StoppedIn(shell); stopped {
					t.Fatalf("process %d is found to be stopped", which)
				}
			}
		})
	}
	if Stopped(1<<30) || Runs(1<<30) {
		t.Error("a process that does not exist is stopped, or runs")
	}
	if !Runs(os.Getpid()) {
		t.Error("this process does not run")
	}
}
