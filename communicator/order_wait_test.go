package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

const waitOrderVariable = "MSCCLGO_TEST_CLOSE_WAITING"

// waitOrders have a rank's kernel wait for what never comes, in what it returns to be closed.
var waitOrders = map[string]func(ctx context.Context, w *worker) (*stack, error){
	"channel": func(ctx context.Context, w *worker) (*stack, error) {
		s, buffer, err := newWaitStack(w)
		if err != nil {
			return nil, err
		}
		channels, err := w.comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{})
		if err != nil {
			return nil, err
		}
		s.push("channels", channels.Close)
		s.names[2] = "module" // in place of the buffer
		s.closes["module"] = w.module.Close
		return s, w.launch("await", 1, 1, channels.HandleOf(0, 1-w.comm.Rank()))
	},
	"port": func(ctx context.Context, w *worker) (*stack, error) {
		s, buffer, err := newWaitStack(w)
		if err != nil {
			return nil, err
		}
		service, err := w.comm.ProxyService(ctx, proxyservice.ServiceOptions{})
		if err != nil {
			return nil, err
		}
		channels, err := w.comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{OnStream: true})
		if err != nil {
			return nil, err
		}
		s.push("channels", func() error { return errors.Join(service.Close(), channels.Close()) })
		return s, channels.OnStream(w.stream, 0, 1-w.comm.Rank()).Wait()
	},
	"barrier": func(ctx context.Context, w *worker) (*stack, error) {
		s, buffer, err := newWaitStack(w)
		if err != nil {
			return nil, err
		}
		memory, err := w.comm.Share(ctx, buffer)
		if err != nil {
			return nil, err
		}
		s.push("memory", memory.Close)
		group, err := w.comm.Group(ctx)
		if err != nil || w.comm.Rank() == 1 {
			return s, err
		}
		return s, w.launch("barriers", 1, 32, group, uint32(1))
	},
}

// newWaitStack returns what all have.
func newWaitStack(w *worker) (*stack, *gpu.Buffer, error) {
	buffer, err := w.comm.Device().Alloc(1 << 12)
	if err != nil {
		return nil, nil, err
	}
	s := &stack{closes: map[string]func() error{}}
	s.push("communicator", w.comm.Close)
	s.push("stream", w.stream.Close)
	s.push("buffer", buffer.Close)
	return s, buffer, nil
}

// permutations returns all orders of the numbers below n.
func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for at := range n {
			q := append(append([]int{}, p[:at]...), n-1)
			all = append(all, append(q, p[at:]...))
		}
	}
	return all
}

// TestCloseWhileWaiting closes what a kernel waits in, and what it needs, in every order: each
// is an error at worst, and the wait ends.
func TestCloseWhileWaiting(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("CUDA's driver waits for the kernel")
	}
	if kind := os.Getenv(waitOrderVariable); kind != "" {
		for _, order := range permutations(4) {
			closeWhileWaiting(t, kind, order)
		}
		t.Log("closed in 24 orders")
		return
	}
	for kind := range waitOrders {
		t.Run(kind, func(t *testing.T) {
			testdev.Parallel(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestCloseWhileWaiting$", "-test.timeout=5m", "-test.v")
			cmd.Env = append(os.Environ(), waitOrderVariable+"="+kind)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "closed in 24 orders") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// closeWhileWaiting makes a group, has kernels wait, and closes in an order.
func closeWhileWaiting(t *testing.T, kind string, order []int) {
	devices := make([]*gpu.Device, 2)
	for i := range devices {
		devices[i] = testerr.Must(gpu.Open(testdev.Name(t, i)))(t)
	}
	options := communicator.Options{Timeout: time.Hour, Scratch: 4096}
	comms := groupOn(t, devices, []communicator.Options{options, options})
	each(t, 2, func(rank int) error {
		w, err := newWorker(t.Context(), comms[rank])
		if err != nil {
			return err
		}
		s, err := waitOrders[kind](t.Context(), w)
		if err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- w.comm.Synchronize(t.Context(), w.stream) }()
		time.Sleep(5 * time.Millisecond) // for the kernel to come to its wait
		for _, i := range order {
			name := s.names[i]
			if err := s.closes[name](); err != nil {
				if e := (*mscclgo.Error)(nil); !errors.As(err, &e) {
					return fmt.Errorf("order %v: close the %s: %w", order, name, err)
				}
			}
		}
		waits := kind != "barrier" || rank == 0
		if err := <-ended; err == nil && waits {
			return fmt.Errorf("order %v of %v: Synchronize says that all is well", order, s.names)
		}
		err = devices[rank].Close()
		if errors.Is(err, mscclgo.ErrAborted) {
			err = nil // the kernel had not come to end yet, on a stream that was closed
		}
		return errors.Join(w.module.Close(), w.results.Close(), err)
	})
}
