package communicator_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// stack is what a rank has made, from the bottom up.
type stack struct {
	names  []string
	closes map[string]func() error
}

func (s *stack) push(name string, close func() error) {
	s.names = append(s.names, name)
	s.closes[name] = close
}

// newStack makes one of each thing on a rank, and has its kernels use them. If busy is
// set, one goes on.
func newStack(t *testing.T, c *communicator.Communicator, dev *gpu.Device, busy bool) (*stack, error) {
	ctx := t.Context()
	s := &stack{closes: map[string]func() error{}}
	s.push("device", dev.Close)
	s.push("communicator", c.Close)
	w, err := newWorker(ctx, c)
	if err != nil {
		return nil, err
	}
	s.push("module", w.module.Close)
	s.push("stream", w.stream.Close)
	s.push("results", w.results.Close)
	buffer, err := dev.Alloc(1 << 16)
	if err != nil {
		return nil, err
	}
	s.push("buffer", buffer.Close)
	memory, err := c.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{})
	if err != nil {
		return nil, err
	}
	s.push("memory channels", memory.Close)
	service, err := c.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return nil, err
	}
	s.push("service", service.Close)
	ports, err := c.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{OnStream: true})
	if err != nil {
		return nil, err
	}
	s.push("port channels", ports.Close)
	if err := w.launch("meet", 1, c.Size(), memory.Handles); err != nil {
		return nil, err
	}
	if err := w.launch("portGather", 1, 1, ports.Handles, uint32(c.Size()), uint32(c.Rank()), uint64(4096), uint32(3)); err != nil {
		return nil, err
	}
	next, before := ports.OnStream(w.stream, 0, (c.Rank()+1)%c.Size()), ports.OnStream(w.stream, 0, (c.Rank()+c.Size()-1)%c.Size())
	if err := errors.Join(next.PutWithSignalAndFlush(0, 0, 4096), before.Wait(), c.Synchronize(ctx, w.stream)); err != nil || !busy {
		return s, err
	}
	return s, w.launch("portStream", 1, 1, ports.Handles, uint64(4096), uint32(1<<30))
}

const orderVariable = "MSCCLGO_TEST_CLOSE_ORDER"

// TestCloseInAnyOrder closes one thing that a rank has made before all others, which
// is an error at worst. Each order has a process, which a segmentation fault would end.
func TestCloseInAnyOrder(t *testing.T) {
	if first := os.Getenv(orderVariable); first != "" {
		first, busy := strings.CutSuffix(first, " while busy")
		closeInOrder(t, first, busy)
		return
	}
	cases := []string{"device", "communicator", "module", "stream", "results", "buffer", "memory channels", "service", "port channels"}
	if !testdev.CUDA() { // CUDA's driver would wait for the kernel
		for _, first := range slices.Clone(cases) {
			cases = append(cases, first+" while busy")
		}
	}
	for _, first := range cases {
		t.Run(first, func(t *testing.T) {
			testdev.Parallel(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestCloseInAnyOrder$", "-test.timeout=60s", "-test.v")
			cmd.Env = append(os.Environ(), orderVariable+"="+first)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func closeInOrder(t *testing.T, first string, busy bool) {
	devices := make([]*gpu.Device, 2)
	for i := range devices {
		devices[i] = testerr.Must(gpu.Open(testdev.Name(t, i)))(t)
	}
	comms := groupOn(t, devices, make([]communicator.Options, 2))
	stacks := make([]*stack, 2)
	each(t, 2, func(rank int) (err error) {
		stacks[rank], err = newStack(t, comms[rank], devices[rank], busy)
		return err
	})
	if t.Failed() {
		return
	}
	each(t, 2, func(rank int) error {
		s := stacks[rank]
		for _, name := range append([]string{first}, s.names...) {
			if err := s.closes[name](); err != nil {
				t.Logf("rank %d: close the %s: %v", rank, name, err)
				if e := (*mscclgo.Error)(nil); !errors.As(err, &e) {
					return fmt.Errorf("close the %s: %w", name, err)
				}
			}
		}
		return nil
	})
}
