package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/launcher"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// verdictTimeout is the time-out of waits that shall fail: long enough for all kernels to have
// begun on a loaded machine.
const verdictTimeout = 4 * time.Second

// culprits returns the errors of all ranks once the group has failed and the workers'
// kernels have ended.
func culprits(t *testing.T, comms []*communicator.Communicator, workers []*worker) []error {
	t.Helper()
	errs := outcomes(t, len(comms), func(rank int) error {
		select {
		case <-comms[rank].Done():
		case <-time.After(verdictTimeout + soon):
		}
		return comms[rank].Err()
	})
	for rank, w := range workers {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		if err := w.stream.Synchronize(ctx); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
		cancel()
	}
	return errs
}

// TestMissingSignal has rank 2 send no signal to rank 1, which never comes to the barrier
// in which ranks 0 and 2 wait. Whichever wait ends first, rank 2 is named.
func TestMissingSignal(t *testing.T) {
	rounds, together := 20, 10
	if testdev.CUDA() { // a group is made only when no kernel of another waits
		rounds, together = 5, 1
	}
	for round := 0; round < rounds && !t.Failed(); round += together {
		var all sync.WaitGroup
		for i := range together {
			comms := group(t, 3, communicator.Options{Timeout: verdictTimeout, Scratch: 4096})
			workers := workers(t, comms)
			groups := make([]devicecode.Group, len(comms))
			channels := make([]*communicator.MemoryChannels, len(comms))
			each(t, len(comms), func(rank int) (err error) {
				c := comms[rank]
				if groups[rank], err = c.Group(t.Context()); err != nil {
					return err
				}
				channels[rank], err = c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{Name: "halo"})
				return err
			})
			if t.Failed() {
				return
			}
			all.Go(func() {
				for _, rank := range rand.Perm(3) {
					err := error(nil)
					if rank == 1 {
						err = workers[1].launch("await", 1, 1, channels[1].HandleOf(0, 2))
					} else {
						err = workers[rank].launch("barriers", 1, 32, groups[rank], 1)
					}
					if err != nil {
						t.Errorf("rank %d: %v", rank, err)
					}
				}
				for rank, err := range culprits(t, comms, workers) {
					const text = "rank 2 never signalled rank 1: rank 1 has waited"
					if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "channel 'halo' from 2 to 1, block 0") {
						t.Errorf("round %d, rank %d: %v", round+i, rank, err)
					}
					if e := (*mscclgo.Error)(nil); rank != 2 && errors.As(err, &e) && e.Peer != 2 {
						t.Errorf("round %d, rank %d: the error names rank %d", round+i, rank, e.Peer)
					}
				}
			})
		}
		all.Wait()
	}
}

// TestMissingSignalInExchange has the ranks that do not wait for rank 2's signal wait on
// the host, for the one that does. Whichever wait ends first, rank 2 is named.
func TestMissingSignalInExchange(t *testing.T) {
	for name, timeouts := range map[string][]time.Duration{
		"the exchange ends first": {verdictTimeout, time.Minute, time.Minute},
		"the kernel ends first":   {time.Minute, time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t)
			var options []communicator.Options
			for _, d := range timeouts {
				options = append(options, communicator.Options{Timeout: d, Scratch: 4096})
			}
			comms := groupWith(t, options)
			workers := workers(t, comms)
			launched := make(chan struct{})
			errs := outcomes(t, len(comms), func(rank int) error {
				c := comms[rank]
				channels, err := c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{})
				if err != nil {
					return err
				}
				if rank == 1 {
					err := workers[rank].launch("await", 1, 1, channels.HandleOf(0, 2))
					close(launched)
					if err != nil {
						return err
					}
					return c.Synchronize(t.Context(), workers[rank].stream)
				}
				<-launched
				err = c.Barrier(t.Context())
				c.Abort(err)
				return err
			})
			for _, rank := range []int{0, 1} {
				failing(t, rank, errs[rank], mscclgo.ErrTimeout, "peer 2", "rank 2 never signalled rank 1")
			}
			if errs[2] == nil {
				t.Error("rank 2 has no error")
			}
		})
	}
}

// TestWaitCycle has two ranks wait for each other, over channels that have a name.
func TestWaitCycle(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 2, func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{Name: "gather"})
		if err != nil {
			return err
		}
		return all[rank].launch("await", 1, 1, channels.HandleOf(0, 1-rank))
	})
	for rank, err := range culprits(t, comms, all) {
		if err == nil || !strings.Contains(err.Error(), "wait for each other: signal 1 of channel 'gather' from") || !strings.Contains(err.Error(), ", and signal 1 of channel 'gather' from") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestWaitCycleInExchange has rank 2 wait on the host for two ranks that wait for each other. Its error names
// these and their channels, and as the culprit none of them.
func TestWaitCycleInExchange(t *testing.T) {
	testdev.Parallel(t)
	var options []communicator.Options
	for _, d := range []time.Duration{time.Minute, time.Minute, verdictTimeout} {
		options = append(options, communicator.Options{Timeout: d, Scratch: 4096})
	}
	comms := groupWith(t, options)
	all := workers(t, comms)
	errs := outcomes(t, len(comms), func(rank int) error {
		c := comms[rank]
		channels, err := c.MemoryChannels(t.Context(), upload(t, c.Device(), 0, 64), communicator.MemoryChannelOptions{})
		if err != nil {
			return err
		}
		if rank == 2 {
			err := c.Barrier(t.Context())
			c.Abort(err)
			return err
		}
		if err := all[rank].launch("await", 1, 1, channels.HandleOf(0, 1-rank)); err != nil {
			return err
		}
		return c.Synchronize(t.Context(), all[rank].stream)
	})
	failing(t, 2, errs[2], mscclgo.ErrTimeout, "ranks 0 and 1 wait for each other: signal 1 of channel", ", and signal 1 of channel")
	if e := (*mscclgo.Error)(nil); errors.As(errs[2], &e) && e.Peer != mscclgo.NoRank {
		t.Errorf("the culprit is %d: %v", e.Peer, e)
	}
	for rank, err := range errs[:2] {
		failing(t, rank, err, mscclgo.ErrTimeout, "ranks 0 and 1 wait for each other")
	}
}

// TestMissingSignalStepApart has rank 1 send no signal, and go on to another channel, where
// it waits for rank 0, which waits for that signal.
func TestMissingSignalStepApart(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 2, func(rank int) error { return stepApart(t, all[rank]) })
	stepApartVerdict(t, comms, all)
}

// stepApart has rank 1 swap with rank 0 over two channels, without the signal on the first.
func stepApart(t *testing.T, w *worker) error {
	rank := w.comm.Rank()
	var handles []gpu.Ptr
	for _, name := range []string{"first", "second"} {
		h, err := handle(t, w.comm, name, 1-min(rank, 1))
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	for _, h := range handles {
		if rank > 1 {
			continue
		}
		if err := w.launch("swap", 1, 1, h, rank == 1 && h == handles[0]); err != nil {
			return err
		}
		if err := w.comm.Synchronize(t.Context(), w.stream); err != nil {
			return nil // as it must
		}
	}
	return nil
}

// stepApartVerdict checks who is named after stepApart.
func stepApartVerdict(t *testing.T, comms []*communicator.Communicator, all []*worker) {
	t.Helper()
	for rank, err := range culprits(t, comms, all) {
		for _, part := range []string{"rank 1 never signalled rank 0: rank 0 has waited", "for signal 1 of channel 'first' from 1 to 0, block 0, in launch 1 of kernel swap (1x1), which has ended on rank 1", "for signal 1 of channel 'second' from 0 to 1"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("rank %d: %v; want %q", rank, err, part)
			}
		}
		if e := (*mscclgo.Error)(nil); rank != 1 && errors.As(err, &e) && e.Peer != 1 {
			t.Errorf("the error names rank %d", e.Peer)
		}
	}
}

// TestKernelNotBegun has rank 2's kernel of a call wait on its stream behind one of the
// user's that does not end.
func TestKernelNotBegun(t *testing.T) {
	comms := group(t, 3, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	word := testerr.Must(comms[2].Device().AllocHost(8))(t)
	t.Cleanup(func() { word.Close() })
	defer func() {
		testerr.Report(t, gpu.CopyIn(word, []uint64{1}))
		testerr.Report(t, all[2].stream.Synchronize(t.Context()))
	}()
	each(t, 3, func(rank int) error {
		g, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if rank == 2 {
			if err := all[rank].launch("spin", 1, 1, word); err != nil {
				return err
			}
		}
		return errors.Join(comms[rank].MatchCall("all-reduce of 1024 f32, sum"), all[rank].launch("barriers", 1, 32, g, 1))
	})
	for rank, err := range culprits(t, comms, all[:2]) {
		const text = "rank 2 has queued call 1, all-reduce of 1024 f32, sum, and its stream has not come to it: the first of its stream that is not known to have ended is launch 1 of kernel spin (1x1)"
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestHandlerBlocks has a kernel of rank 0 wait for rank 1, whose handler does not return.
func TestHandlerBlocks(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	waiting(t, comms, all, 1, 0)
	called, release := make(chan struct{}), make(chan struct{})
	s := testerr.Must(comms[1].ProxyService(t.Context(), proxyservice.ServiceOptions{Handler: func(context.Context, fifo.Trigger) error {
		close(called)
		<-release
		return nil
	}}))(t)
	defer s.Close()
	defer close(release)
	testerr.Check(t, all[1].launch("ask", 1, 1, s.Fifo(), uint32(200)))
	select {
	case <-called:
	case <-time.After(soon):
		t.Fatal("the handler was not called")
	}
	for rank, err := range culprits(t, comms, all) {
		if err == nil || !strings.Contains(err.Error(), "rank 1's handler has served one trigger of kind 200 for") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestHandlerEndsWithGroup fails a group while a handler waits for what does not come.
func TestHandlerEndsWithGroup(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	called, ended := make(chan struct{}), make(chan error, 1)
	s := testerr.Must(comms[1].ProxyService(t.Context(), proxyservice.ServiceOptions{Handler: func(ctx context.Context, _ fifo.Trigger) error {
		close(called)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	}}))(t)
	testerr.Check(t, all[1].launch("ask", 1, 1, s.Fifo(), uint32(200)))
	<-called
	comms[0].Abort(errors.New("the disk is full"))
	select {
	case err := <-ended:
		if !strings.Contains(err.Error(), "the group has ended") {
			t.Errorf("the handler's context ended because of %v", err)
		}
	case <-time.After(soon):
		t.Error("the handler's context goes on after the group has failed")
	}
	if err := comms[1].Err(); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("the group failed because of %v", err)
	}
	s.Close()
}

// TestCallNotMade has rank 2 make one call fewer than the others, which wait for it in a
// barrier.
func TestCallNotMade(t *testing.T) {
	comms := group(t, 3, communicator.Options{Timeout: verdictTimeout})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		g, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if err := comms[rank].MatchCall("broadcast of 8 f32"); err != nil || rank == 2 {
			return err
		}
		if err := comms[rank].MatchCall("all-reduce of 1024 f32, sum"); err != nil {
			return err
		}
		return all[rank].launch("barriers", 1, 32, g, 1)
	})
	for rank, err := range culprits(t, comms, all) {
		if err == nil || !strings.Contains(err.Error(), "rank 2 has not made call 2, all-reduce of 1024 f32, sum: its last is call 1, broadcast of 8 f32") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestHeartbeatOption(t *testing.T) {
	_, err := communicator.New(t.Context(), ranks(t, 1)[0], testdev.Open(t, 0), communicator.Options{HeartbeatTimeout: time.Millisecond})
	failing(t, 0, err, mscclgo.ErrInvalid, "Options.HeartbeatTimeout is 1ms, not 100ms or more")
	t.Setenv("MSCCLGO_HEARTBEAT_TIMEOUT", "5")
	aloneInEnv(t)
	_, err = communicator.Join(t.Context(), communicator.Options{Device: testdev.Name(t, 0)})
	failing(t, 0, err, mscclgo.ErrInvalid, `MSCCLGO_HEARTBEAT_TIMEOUT is "5", neither off nor a duration`)
}

// verdictEnv makes the test's program a rank of TestVerdictProcesses; its value is what
// the ranks do.
const verdictEnv = "MSCCLGO_TEST_VERDICT"

// The ranks of hosts of their own take their host's identity from their number.
var verdictModes = map[string]struct {
	hosts     bool // each rank is a host of its own
	bare      bool // there is no launcher
	timeout   time.Duration
	heartbeat string
	do        func(context.Context, *communicator.Communicator) error
	want      string // in what ranks 0 and 1 say
}{
	"stopped":       {timeout: time.Hour, heartbeat: "2s", do: stopRank2, want: "rank 2 is stopped (process "},
	"stopped first": {timeout: time.Hour, heartbeat: "2s", do: stopRank0, want: "rank 0 is stopped (process "},
	// Rank 2, whose end only rank 0 would be told of. A launcher would continue that.
	"stopped first, and then one is killed": {bare: true, timeout: time.Hour, heartbeat: "1h", do: killBesideStopped, want: ") has ended without leaving the group; rank 0 is stopped (process "},
	// A wait fails long before the silence counts.
	"stopped, and a wait fails": {timeout: verdictTimeout, heartbeat: "1h", do: waitForStopped, want: "rank 2 is stopped (process "},
	"stopped while it compiles": {timeout: verdictTimeout, heartbeat: "1h", do: waitForCompiler, want: "rank 2 is stopped (process "},
	// What it was sent has been without an acknowledgement for longer than the wait lasts.
	"stopped, with data under way": {hosts: true, timeout: verdictTimeout, heartbeat: "off", do: putToStopped, want: "rank 2 never signalled rank 0: rank 0 has waited"},
	"a host is silent":             {hosts: true, timeout: time.Hour, heartbeat: "2s", do: stopRank2, want: "rank 2 (process "},
	"the first host is silent":     {hosts: true, timeout: time.Hour, heartbeat: "2s", do: stopRank0, want: "rank 0 (process "},
	// Rank 0 waits for rank 1, which waits for rank 2.
	"across hosts": {hosts: true, timeout: verdictTimeout, heartbeat: "off", do: waitInLine, want: "rank 2 never signalled rank 1: rank 1 has waited"},
	// Rank 0 waits in a part of the group for rank 1, which waits in the group for rank 2.
	"across hosts, outside": {hosts: true, timeout: verdictTimeout, heartbeat: "off", do: waitForOutside, want: "rank 2 of the outer group never signalled rank 1: rank 1 has waited"},
	// Long before the import's time is up.
	"no descriptors": {timeout: 8 * time.Second, heartbeat: "off", do: acceptNobody, want: "rank 1 failed: communicator: answer peers"},
	// Nothing fails while a rank leaves before the others.
	"a rank leaves":         {timeout: time.Hour, heartbeat: "500ms", do: leaveEarly},
	"beside a stopped host": {hosts: true, timeout: time.Hour, heartbeat: "off", do: besideStopped},
	"a host leaves":         {hosts: true, timeout: time.Hour, heartbeat: "500ms", do: leaveEarly},
}

// stopItself stops this process, as a shell does.
func stopItself() error { return syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

func stopRank2(ctx context.Context, c *communicator.Communicator) error { return stopRank(ctx, c, 2) }
func stopRank0(ctx context.Context, c *communicator.Communicator) error { return stopRank(ctx, c, 0) }

// stopRank has one rank stop once all are heard.
func stopRank(ctx context.Context, c *communicator.Communicator, rank int) error {
	time.Sleep(time.Second)
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if c.Rank() == rank {
		return stopItself()
	}
	return awaitFailure(c)
}

// waitForStopped has rank 0 wait for rank 1, which does nothing, while rank 2 is stopped.
func waitForStopped(ctx context.Context, c *communicator.Communicator) error {
	w, channels, err := portsBetween(ctx, c)
	if err != nil {
		return err
	}
	switch c.Rank() {
	case 0:
		err = w.launch("awaitPort", 1, 1, channels.HandleOf(0, 1))
	case 2:
		return stopItself()
	}
	return errors.Join(err, awaitFailure(c))
}

// waitForCompiler is waitForStopped where rank 2 has told that it compiles, for which waits are put off.
func waitForCompiler(ctx context.Context, c *communicator.Communicator) error {
	if c.Rank() == 2 {
		compiled := c.Device().Internal().BeginBusy("compiles slow.cu", true)
		defer compiled()
	}
	return waitForStopped(ctx, c)
}

// putToStopped has rank 0 put to rank 2, which is stopped, and half a second later wait for it.
func putToStopped(ctx context.Context, c *communicator.Communicator) error {
	w, channels, err := portsBetween(ctx, c)
	if err != nil {
		return err
	}
	if c.Rank() == 2 {
		return stopItself()
	}
	if c.Rank() == 0 {
		time.Sleep(apart)
		send, err := w.module.Kernel("sendBySet")
		if err != nil {
			return err
		}
		if err := send.Launch(w.stream, gpu.Blocks(1, 1), channels.Set(), uint32(2), uint32(c.Size()), uint64(64)); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
		return errors.Join(w.launch("awaitPort", 1, 1, channels.HandleOf(0, 2)), awaitFailure(c))
	}
	return awaitFailure(c)
}

// acceptNobody has rank 0 ask rank 1, which has no descriptor left, for a memory.
func acceptNobody(ctx context.Context, c *communicator.Communicator) error {
	const tag = 7
	switch c.Rank() {
	case 0:
		description, err := c.Bootstrap().Recv(ctx, 1, tag)
		if err != nil {
			return err
		}
		go c.Registry().Import(ctx, description) // it ends with the process
	case 1:
		buffer, err := c.Device().Alloc(64)
		if err != nil {
			return err
		}
		memory, err := c.Registry().Register(buffer)
		if err != nil {
			return err
		}
		description, err := memory.MarshalBinary()
		if err != nil {
			return err
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: 3}); err != nil {
			return err
		}
		if err := c.Bootstrap().Send(ctx, 0, tag, description); err != nil {
			return err
		}
	}
	return awaitFailure(c)
}

// waitInLine has each rank but the last wait for the next.
func waitInLine(ctx context.Context, c *communicator.Communicator) error {
	w, channels, err := portsBetween(ctx, c)
	if err != nil {
		return err
	}
	if next := c.Rank() + 1; next < c.Size() {
		err = w.launch("awaitPort", 1, 1, channels.HandleOf(0, next))
	}
	return errors.Join(err, awaitFailure(c))
}

// waitForOutside has rank 0 wait for rank 1 in a part of the group, and a moment later rank 1 for
// rank 2 in the whole.
func waitForOutside(ctx context.Context, c *communicator.Communicator) error {
	w, channels, err := portsBetween(ctx, c)
	if err != nil {
		return err
	}
	part, err := c.Split(ctx, c.Rank()/2, 0)
	if err != nil {
		return err
	}
	switch c.Rank() {
	case 0:
		err = part.Barrier(ctx)
		c.Abort(err)
		return err
	case 1:
		time.Sleep(apart)
		err = w.launch("awaitPort", 1, 1, channels.HandleOf(0, 2))
	}
	return errors.Join(err, awaitFailure(c))
}

// portsBetween returns port channels to all ranks, on a service that is closed with the process.
func portsBetween(ctx context.Context, c *communicator.Communicator) (*worker, *communicator.PortChannels, error) {
	w, err := newWorker(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	local, err := gpu.Upload(c.Device(), make([]byte, 64))
	if err != nil {
		return nil, nil, err
	}
	s, err := c.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return nil, nil, err
	}
	channels, err := c.PortChannels(ctx, s, local, communicator.PortChannelOptions{Name: "line"})
	return w, channels, err
}

func leaveEarly(ctx context.Context, c *communicator.Communicator) error {
	if c.Rank() == 2 {
		return nil
	}
	select {
	case <-c.Done():
		return c.Err()
	case <-time.After(3 * time.Second):
		return nil
	}
}

// verdictChild is what a rank of TestVerdictProcesses does.
func verdictChild(name string) error {
	mode := verdictModes[name]
	signal.Ignore(syscall.SIGTERM) // all ranks have the launcher's grace to say what they saw
	if mode.hosts {
		os.Setenv("MSCCLGO_HOST_ID", "host "+os.Getenv("RANK"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := communicator.Join(ctx, communicator.Options{Device: "emu", Timeout: mode.timeout})
	if err != nil {
		return err
	}
	if err := mode.do(ctx, c); err != nil {
		return fmt.Errorf("rank %d says: %w", c.Rank(), err)
	}
	return c.Close()
}

func TestVerdictProcesses(t *testing.T) {
	if kind, _, _ := strings.Cut(testdev.Name(t, 0), ":"); kind != "emu" {
		t.Skip("the ranks are processes on emulated devices")
	}
	program, err := os.Executable()
	testerr.Check(t, err)
	for name, mode := range verdictModes {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t) // they mostly wait
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var output bytes.Buffer
			var err error
			env := []string{verdictEnv + "=" + name, "MSCCLGO_HEARTBEAT_TIMEOUT=" + mode.heartbeat}
			if mode.bare {
				err = runBare(ctx, t, 3, &output, env)
			} else {
				_, err = launcher.Run(ctx, launcher.Options{Ranks: 3, Program: program, Stdout: &output, Stderr: &output, Grace: 5 * time.Second, Env: env})
			}
			if (err == nil) != (mode.want == "") {
				t.Errorf("the ranks ended with %v\n%s", err, &output)
			}
			// The launcher may end the others once one has ended.
			if !strings.Contains(output.String(), mode.want) {
				t.Errorf("no rank says %q:\n%s", mode.want, &output)
			}
		})
	}
}
