package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/gpu"
)

// process is a rank that lead has started.
type process struct {
	cmd   *exec.Cmd
	came  chan struct{} // closed when it comes to the server
	sizes chan int      // of the groups that it comes into
	ended chan error
}

// settle is how long the server waits for more ranks. On a loaded machine ranks take a
// while to start or to notice a failure.
const settle = 2 * time.Second

// lead opens the server and starts the ranks. Then it kills one, so many times, and another
// takes its place: by turns a spare that has been waiting, and one that is started later. The
// others go on meanwhile. In the end it tells all to stop.
func lead(ctx context.Context, n, kills int, kind string, out io.Writer) error {
	server, err := bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: n - 1, Max: n, Settle: settle})
	if err != nil {
		return err
	}
	defer server.Close()
	out = &together{out: out}
	ranks := make([]*process, n)
	defer func() {
		for _, p := range ranks {
			if p != nil {
				p.cmd.Process.Kill()
			}
		}
	}()
	for i := range ranks {
		if ranks[i], err = start(server.ID(), kind, i, out); err != nil {
			return err
		}
	}
	if err := await(ctx, ranks, n); err != nil {
		return err
	}
	for k := range kills {
		time.Sleep(100 * time.Millisecond) // some steps
		victim := k % n
		var spare *process
		if k%2 == 1 {
			if spare, err = start(server.ID(), kind, victim, out); err != nil {
				return err
			}
			defer spare.cmd.Process.Kill()
			if err := spare.comes(ctx); err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "killing process %d, of %d ranks\n", ranks[victim].cmd.Process.Pid, n)
		ranks[victim].cmd.Process.Kill()
		<-ranks[victim].ended
		if spare != nil {
			ranks[victim] = spare
			if err := await(ctx, ranks, n); err != nil {
				return err
			}
			continue
		}
		var left []*process
		left = append(append(left, ranks[:victim]...), ranks[victim+1:]...)
		if err := await(ctx, left, n-1); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		if ranks[victim], err = start(server.ID(), kind, victim, out); err != nil {
			return err
		}
		if err := await(ctx, ranks, n); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond)
	var errs []error
	for _, p := range ranks {
		errs = append(errs, p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for i, p := range ranks {
		select {
		case err := <-p.ended:
			errs = append(errs, err)
			ranks[i] = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// start starts a rank on a device of this machine.
func start(id bootstrap.UniqueID, kind string, local int, out io.Writer) (*process, error) {
	name, err := gpu.Assign(kind, local)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, "-on", name), came: make(chan struct{}), sizes: make(chan int, 1000), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), bootstrap.EnvID+"="+id.String())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = out
	lines, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		came := sync.OnceFunc(func() { close(p.came) })
		for scan := bufio.NewScanner(lines); scan.Scan(); {
			fmt.Fprintf(out, "%d: %s\n", p.cmd.Process.Pid, scan.Text())
			if strings.HasPrefix(scan.Text(), "comes") {
				came()
			}
			var generation, rank, size int
			if n, _ := fmt.Sscanf(scan.Text(), "generation %d: rank %d of %d", &generation, &rank, &size); n == 3 {
				p.sizes <- size
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	return p, nil
}

// comes returns when the process has come to the server.
func (p *process) comes(ctx context.Context) error {
	select {
	case <-p.came:
		return nil
	case err := <-p.ended:
		p.ended <- err
		return fmt.Errorf("process %d has ended: %v", p.cmd.Process.Pid, err)
	case <-ctx.Done():
		return fmt.Errorf("process %d has not come to the server: %w", p.cmd.Process.Pid, ctx.Err())
	}
}

// await returns when each process is in a group of that size, or one has ended.
func await(ctx context.Context, processes []*process, size int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrived := make(chan error, len(processes))
	for _, p := range processes {
		go func() { arrived <- p.await(ctx, size) }()
	}
	for range processes {
		if err := <-arrived; err != nil {
			return err
		}
	}
	return nil
}

// await returns when the process is in a group of that size.
func (p *process) await(ctx context.Context, size int) error {
	for {
		select {
		case got := <-p.sizes:
			if got == size {
				return nil
			}
		case err := <-p.ended:
			p.ended <- err
			return fmt.Errorf("process %d has ended: %v", p.cmd.Process.Pid, err)
		case <-ctx.Done():
			return fmt.Errorf("process %d is not in a group of %d ranks: %w", p.cmd.Process.Pid, size, ctx.Err())
		}
	}
}

// together has whole writes of several goroutines follow each other.
type together struct {
	mu  sync.Mutex
	out io.Writer
}

func (t *together) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Write(b)
}
