package explore_test

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed testdata/proxies.cu
var proxies []byte

// proxyThreads are those of a block of proxies.cu.
const proxyThreads = 8

// served returns a rank that runs a kernel of proxies.cu, and what rank 1 expects.
func served(name string, mended bool) func(context.Context, *communicator.Communicator) error {
	var options devicecode.Options
	if mended {
		options.Defines = []string{"MENDED"}
	}
	return func(ctx context.Context, comm *communicator.Communicator) (err error) {
		module, err := devicecode.Load(ctx, comm.Device(), "proxies.cu", proxies, options)
		if err != nil {
			return err
		}
		kernel, err := module.Kernel(name)
		if err != nil {
			return err
		}
		var errs [4]error
		var answer, buffer *gpu.Buffer
		var stream *gpu.Stream
		answer, errs[0] = comm.Device().AllocHost(4)
		buffer, errs[1] = gpu.Upload(comm.Device(), make([]byte, 2*4*proxyThreads))
		stream, errs[2] = comm.NewStream()
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{
			Direct: channel.HostOnly,
			Handler: func(context.Context, fifo.Trigger) error {
				return gpu.CopyIn(answer, []byte{1, 0, 0, 0})
			},
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, service.Close()) }()
		ports, err := comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{})
		if err != nil {
			return err
		}
		group, err := comm.Group(ctx)
		if err != nil {
			return err
		}
		err = kernel.Launch(stream, gpu.Blocks(1, proxyThreads), ports.HandleOf(0, 1-comm.Rank()), service.Fifo(), group, buffer, answer)
		if err := errors.Join(err, stream.Synchronize(ctx), comm.Barrier(ctx)); err != nil || comm.Rank() == 0 {
			return err
		}
		got := make([]byte, 2*4*proxyThreads)
		if err := gpu.CopyOut(got, buffer); err != nil {
			return err
		}
		words := proxyThreads
		if name == "handledLate" {
			words = 1
		}
		for i := range words {
			early, word := binary.LittleEndian.Uint32(got[4*i:]), binary.LittleEndian.Uint32(got[4*(proxyThreads+i):])
			if early != 0 || word != uint32(i+1) {
				return fmt.Errorf("word %d is %d, early %d", i, word, early)
			}
		}
		return nil
	}
}

// servedCases are the kernels of proxies.cu that have a mistake.
var servedCases = []string{"overwritten", "signalFirst", "usedEarly", "handledLate"}

// TestProxies finds mistakes in what proxies are asked for, each time in the same steps, and none
// in what is right.
func TestProxies(t *testing.T) {
	for _, name := range servedCases {
		t.Run(name, func(t *testing.T) {
			checkServed(t, served(name, false), served(name, true))
		})
	}
}

// checkServed finds the mistake of ranks, each time in the same steps, and none in what mends it.
func checkServed(t *testing.T, wrong, mended func(context.Context, *communicator.Communicator) error) {
	t.Helper()
	found := slices.ContainsFunc(plans(schedules), func(p explore.Plan) bool {
		first, err := run(t, p, 2, wrong)
		if err == nil {
			return false
		}
		t.Logf("seed %d, %d steps: %s", p.Seed, first.Steps, first.Ended)
		p.Expected = first.Trace
		again, err := run(t, p, 2, wrong)
		if err == nil || again.Ended != first.Ended || again.Digest != first.Digest || again.Diverged != "" || len(again.Uncontrolled) > 0 {
			t.Errorf("again: %q, %q, %q, %v", again.Ended, again.Diverged, again.Uncontrolled, err)
		}
		return true
	})
	if !found {
		t.Errorf("not found in %d schedules", schedules)
	}
	different := orderings{}
	for _, p := range plans(number(t, 4*len(explore.Schedulers))) {
		o, err := run(t, p, 2, mended)
		if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
			t.Fatalf("mended, seed %d: %v, %q", p.Seed, err, o.Uncontrolled)
		}
		different.add(p, o)
	}
	different.check(t)
}

// TestProxyDeadlock has a rank wait for what no proxy is asked for, which is found at once though
// proxies would serve.
func TestProxyDeadlock(t *testing.T) {
	for _, p := range plans(len(explore.Schedulers)) {
		begin := time.Now()
		o, err := run(t, p, 2, served("noSignal", false))
		if err == nil || !strings.Contains(o.Ended, "deadlock, nothing can go on") || !strings.Contains(o.Ended, "a proxy waits") || len(o.Uncontrolled) > 0 {
			t.Errorf("seed %d: %v, %q, %q", p.Seed, err, o.Ended, o.Uncontrolled)
		}
		if took := time.Since(begin); took > 50*time.Second { // what is not under control may take a minute
			t.Errorf("seed %d: only after %v, %d steps", p.Seed, took, o.Steps)
		}
	}
}

// plans returns those of the first n seeds, of which every other has loads get old values.
func plans(n int) (all []explore.Plan) {
	for i := range n {
		p := schedule(i)
		p.Weak = i%2 == 1
		all = append(all, p)
	}
	return all
}
