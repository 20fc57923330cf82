package launcher

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/mscclgo/mscclgo/internal/deathwatch"
	"github.com/mscclgo/mscclgo/internal/procfs"
)

// rank is one process of a run.
type rank struct {
	number  int
	cmd     *exec.Cmd
	streams []*stream // of Stdout and Stderr
	guard   *deathwatch.Watch

	mu    sync.Mutex
	ended bool // its process id may belong to another process
}

// startRank starts one rank. The calling goroutine must stay locked to its thread
// until the rank has ended: to the kernel, the death of that thread is the death
// of the parent.
func startRank(number int, o Options, master, env []string, output *sync.Mutex, guard *deathwatch.Watch) (*rank, error) {
	prefix := ""
	if o.Prefix {
		prefix = fmt.Sprintf("[%*d] ", len(strconv.Itoa(o.Ranks-1)), number)
	}
	cmd := exec.Command(o.Program, o.Args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Env = slices.Concat(cmd.Environ(), master, o.Env, env)
	if number == 0 {
		if err := connectStdin(cmd, o.Stdin); err != nil {
			return nil, err
		}
	}
	stdout, err := newStream(&lines{mu: output, out: o.Stdout, prefix: prefix})
	if err != nil {
		return nil, err
	}
	stderr, err := newStream(&lines{mu: output, out: o.Stderr, prefix: prefix})
	if err != nil {
		stdout.discard()
		return nil, err
	}
	r := &rank{number: number, cmd: cmd, streams: []*stream{stdout, stderr}, guard: guard}
	cmd.Stdout, cmd.Stderr = stdout.write, stderr.write
	if err := cmd.Start(); err != nil {
		stdout.discard()
		stderr.discard()
		return nil, err
	}
	guard.Add(cmd.Process.Pid)
	stdout.start()
	stderr.start()
	return r, nil
}

// signal sends s to the rank's process group, unless the rank has ended.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		// It fails only for a program that has changed its user.
		syscall.Kill(-r.cmd.Process.Pid, s)
	}
}

// stopped reports whether the rank's process is stopped, or the one that it waits for.
func (r *rank) stopped() (process int, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return 0, false
	}
	return procfs.StoppedIn(r.cmd.Process.Pid)
}

// wait returns when the rank has ended and its process group was killed.
func (r *rank) wait() end {
	pid := r.cmd.Process.Pid
	deathwatch.Await(pid)
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	syscall.Kill(-pid, syscall.SIGKILL)
	r.guard.Remove(pid)
	r.cmd.Wait() // its error repeats the status
	for _, s := range r.streams {
		s.end()
	}
	if r.cmd.ProcessState == nil {
		return end{r.number, "ended, and its status was taken by code that waits for any child, or by the kernel because this process ignores SIGCHLD", exitFailed}
	}
	how, code := describe(r.cmd.ProcessState.Sys().(syscall.WaitStatus))
	return end{r.number, how, code}
}

// drain returns when what the rank wrote has been written to the output. It is
// called once, after wait.
func (r *rank) drain() (err error) {
	for _, s := range r.streams {
		if e := s.drain(); err == nil {
			err = e
		}
	}
	return err
}
