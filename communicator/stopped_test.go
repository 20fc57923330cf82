package communicator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// besideStopped has rank 0 stream to rank 2, whose process is stopped, until nothing more
// can be queued. Its puts to rank 1, by the same service, are served all the same. Then
// rank 2 goes on, and the stream arrives.
func besideStopped(ctx context.Context, c *communicator.Communicator) error {
	const bytes, streamed, rounds, tag = 64 << 10, 4000, 100, 7
	w, err := newWorker(ctx, c)
	if err != nil {
		return err
	}
	local, err := gpu.Upload(c.Device(), make([]byte, bytes))
	if err != nil {
		return err
	}
	times, err := gpu.Upload(c.Device(), make([]uint32, rounds))
	if err != nil {
		return err
	}
	s, err := c.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	channels, err := c.PortChannels(ctx, s, local, communicator.PortChannelOptions{})
	if err != nil {
		return err
	}
	switch c.Rank() {
	case 0:
		message, err := c.Bootstrap().Recv(ctx, 2, tag)
		if err != nil {
			return err
		}
		stopped := int(binary.LittleEndian.Uint64(message))
		defer syscall.Kill(stopped, syscall.SIGCONT)
		if err := until(ctx, "rank 2 is stopped", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", stopped))
			return err == nil && strings.Contains(string(stat), ") T ")
		}); err != nil {
			return err
		}
		if err := w.launch("portStream", 1, 1, channels.HandleOf(0, 2), uint64(bytes), uint32(streamed)); err != nil {
			return err
		}
		full := func() bool { return s.Snapshot().Deferred == 1024 }
		if err := until(ctx, "nothing more can be queued", full); err != nil {
			return err
		}
		other, err := newWorker(ctx, c)
		if err != nil {
			return err
		}
		if err := other.run(ctx, "portVolley", 1, channels.HandleOf(0, 1), uint64(bytes), uint32(rounds), true, times); err != nil {
			return err
		}
		if err := until(ctx, "the queue is full again, as rank 2 takes nothing", full); err != nil {
			return err
		}
		syscall.Kill(stopped, syscall.SIGCONT)
		if err := c.Synchronize(ctx, w.stream); err != nil {
			return err
		}
		if err := w.want(done); err != nil {
			return err
		}
	case 1:
		if err := w.run(ctx, "portVolley", 1, channels.HandleOf(0, 0), uint64(bytes), uint32(rounds), false, times); err != nil {
			return err
		}
	case 2:
		if err := c.Bootstrap().Send(ctx, 0, tag, binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid()))); err != nil {
			return err
		}
		if err := stopItself(); err != nil {
			return err
		}
	}
	return errors.Join(c.Barrier(ctx), s.Close(), channels.Close())
}

// until waits until something is so.
func until(ctx context.Context, what string, is func() bool) error {
	for ; !is(); time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return fmt.Errorf("never %s", what)
		}
	}
	return nil
}

// killBesideStopped has rank 0 stopped, and then rank 2 killed. Rank 1 waits for neither when it closes.
func killBesideStopped(ctx context.Context, c *communicator.Communicator) error {
	const tag = 7
	switch c.Rank() {
	case 0:
		err := c.Bootstrap().Send(ctx, 2, tag, binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid())))
		return errors.Join(err, stopItself())
	case 2:
		message, err := c.Bootstrap().Recv(ctx, 0, tag)
		if err != nil {
			return err
		}
		stopped := int(binary.LittleEndian.Uint64(message))
		return errors.Join(until(ctx, "rank 0 is stopped", func() bool { return procfs.Stopped(stopped) }), syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	err := awaitFailure(c)
	start := time.Now()
	err = errors.Join(err, c.Close())
	if took := time.Since(start); took >= 2*time.Second {
		return fmt.Errorf("it took %v to close", took)
	}
	return err
}

// runBare starts the test's program as ranks without a launcher, and returns when rank 1 has ended.
func runBare(ctx context.Context, t *testing.T, ranks int, output *bytes.Buffer, env []string) error {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	rendezvous := testproc.NewRendezvous(t)
	all := make([]*exec.Cmd, ranks)
	for rank := range all {
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(append(os.Environ(), testproc.RankEnv(rendezvous.ID(), rank, ranks)...), env...)
		if rank == 1 {
			cmd.Stdout, cmd.Stderr = output, output
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		all[rank] = cmd
	}
	return all[1].Wait()
}
