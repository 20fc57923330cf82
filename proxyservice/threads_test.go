package proxyservice_test

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestSharedThread has the services of two ranks, each with a device of its own, share a
// thread, mapped and over Ethernet: both serve, also while and after the other is stopped.
func TestSharedThread(t *testing.T) {
	for name, pair := range map[string]func(testing.TB, proxyservice.ServiceOptions) [2]*rank{"mapped": newPair, "far": newFarPair} {
		t.Run(name, func(t *testing.T) {
			var o proxyservice.ServiceOptions
			o.Threads = &proxyservice.Threads{}
			ranks := pair(t, o)
			d := newDuo(t, ranks, 4096)
			exchange := func(from int) {
				t.Helper()
				data := make([]byte, 4096)
				for i := range data {
					data[i] = byte(i*7 + from)
				}
				testerr.Check(t, gpu.CopyIn(d.send[from], data))
				ranks[from].must(t, d.channels[from], putWithSignalAndFlush, 0, 0, 4096)
				ranks[1-from].must(t, d.channels[1-from], wait, 0, 0, 0)
				testcmp.Equal(t, "what arrived", read[byte](t, d.receive[1-from], 4096), data)
			}
			for range 3 {
				for i, r := range ranks {
					exchange(0)
					exchange(1)
					testerr.Check(t, r.service.Stop(t.Context()))
					exchange(1 - i)
					r.start(t)
				}
			}
		})
	}
}

// TestStalledRingOnSharedThread has one ring stop, as its kernel pushes more for a peer that
// takes nothing than there is room for. The other ring of the thread is served.
func TestStalledRingOnSharedThread(t *testing.T) {
	const ring, backlog = 64, 1024
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: ring, Options: proxyservice.Options{Threads: &proxyservice.Threads{}}})
	d := newDuo(t, ranks, 4096)
	_, driver := newSlowChannel(t, ranks, d)
	const number, kind = 1, layout.PortSignal
	result := ranks[0].alloc(t, 4)
	ranks[0].launch(t, "pushMany", 1, 1, ranks[0].service.Fifo(), uint64(number), uint32(kind), uint32(5000), result)
	eventually(t, "the ring has stopped", func() bool {
		s := ranks[0].service.Snapshot()
		return s.Deferred == backlog && s.Waiting == ring
	})
	for range 50 {
		ranks[1].must(t, d.channels[1], putWithSignalAndFlush, 0, 0, 64)
	}
	testcmp.Equal(t, "triggers in the ring", ranks[0].service.Snapshot().Waiting, ring)
	driver.release()
	ranks[0].wait(t)
}

// TestFailureOnSharedThread has a proxy fail whose OnFailure waits for something, as a communicator's does for
// news of the cause: the other rings of the thread are served, and proxies begin and end on it. The one that
// failed ends once OnFailure has returned, which must not stop it.
func TestFailureOnSharedThread(t *testing.T) {
	shared := proxyservice.Options{Threads: &proxyservice.Threads{}}
	ranks := newPair(t, proxyservice.ServiceOptions{Options: shared})
	d := newDuo(t, ranks, 4096)
	failed, goOn, stopped := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	var failing *proxyservice.ProxyService
	o := proxyservice.ServiceOptions{Options: shared, Watch: ranks[0].watch()}
	o.OnFailure = func(err error) {
		failed <- err
		stopped <- failing.Stop(t.Context())
		<-goOn
	}
	failing = testerr.Must(proxyservice.New(ranks[0].dev, o))(t)
	testerr.Check(t, failing.Start(t.Context()))
	const noKind = 64
	ranks[0].launch(t, "pushMany", 1, 1, failing.Fifo(), uint64(0), uint32(noKind), uint32(1), ranks[0].alloc(t, 4))
	ranks[0].wait(t)
	cause := <-failed
	testerr.Expect(t, cause, mscclgo.ErrInvalid, "kind 64")
	testerr.Expect(t, <-stopped, mscclgo.ErrInvalid, "own goroutine")
	for i, r := range ranks {
		r.must(t, d.channels[i], putWithSignalAndFlush, 0, 0, 4096)
		testerr.Check(t, r.service.Stop(t.Context()))
		r.start(t)
	}
	ends := make(chan error, 1)
	go func() { ends <- failing.Close() }()
	close(goOn)
	if err := <-ends; !errors.Is(err, cause) {
		t.Errorf("closing the service returned %v", err)
	}
}
