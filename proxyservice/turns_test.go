package proxyservice

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestTurns has a ring with few triggers share a thread with rings that always have more,
// served by C and by Go. Whenever one of its triggers is served, each of the others had as
// many turns, of 16 triggers.
func TestTurns(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the queue writes to host memory")
	}
	const batch, few, many = 16, 100, 500
	inGo := &idle{}
	floods := []*bed{newBed(t, over(&idle{queue: nativetest.NewQueue().Queue})), newBed(t, over(inGo))}
	one := newBed(t, over(&idle{}))
	served := []func() int{
		func() int { return int(floods[0].service.Snapshot().Triggers[layout.PortSignal]) },
		func() int { return inGo.updates },
	}
	for _, b := range floods {
		b.push(fifo.Trigger{Kind: layout.PortSignal}, many)
	}
	one.push(fifo.Trigger{Kind: 200}, few)
	one.handle = func(fifo.Trigger) {
		turns := (one.handled-1)/batch + 1
		for i := range floods {
			testcmp.Equal(t, fmt.Sprintf("triggers of flood %d before trigger %d", i, one.handled), served[i](), batch*turns)
		}
	}
	shared := newThread()
	for _, b := range append(floods, one) {
		r := &run{proxy: b.service.Proxy, release: func() {}}
		b.service.loop.stop()
		shared.add(r)
	}
	for len(shared.runs) > 0 {
		if r, over, err := shared.serve(); over {
			testerr.Report(t, err)
			shared.remove(r)
		}
	}
	testcmp.Equal(t, "triggers served", []int{served[0](), served[1](), one.handled}, []int{many, many, few})
}

// TestTurnOfFailed has a proxy fail that shares a thread. The others go on, in order.
func TestTurnOfFailed(t *testing.T) {
	var beds []*bed
	shared := newThread()
	for range 3 {
		b := newBed(t, over(&idle{}))
		b.push(fifo.Trigger{Kind: 200}, 40)
		shared.add(&run{proxy: b.service.Proxy, release: func() {}})
		beds = append(beds, b)
	}
	var order []int
	for i, b := range beds {
		b.handle = func(fifo.Trigger) {
			if i == 1 && b.handled == 20 {
				panic("no more")
			}
			if n := len(order); n == 0 || order[n-1] != i {
				order = append(order, i)
			}
		}
		b.service.loop.stop()
	}
	var ended []error
	for len(shared.runs) > 0 {
		if r, over, err := shared.serve(); over {
			ended = append(ended, err)
			shared.remove(r)
		}
	}
	if len(ended) != 3 || !errors.Is(ended[0], mscclgo.ErrSystem) || ended[1] != nil || ended[2] != nil {
		t.Errorf("the runs ended with %v", ended)
	}
	testcmp.Equal(t, "the turns", order, []int{0, 1, 2, 0, 1, 2, 0, 2})
}

// firstCPU returns a CPU that this process may run on.
func firstCPU(t *testing.T) int {
	t.Helper()
	var allowed unix.CPUSet
	testerr.Check(t, unix.SchedGetaffinity(0, &allowed))
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	return cpu
}

// TestThreads starts and stops services on threads that they share: one thread for each
// set of CPUs, as long as there is a service on it.
func TestThreads(t *testing.T) {
	var threads Threads
	running := func() int {
		threads.mu.Lock()
		defer threads.mu.Unlock()
		return len(threads.running)
	}
	service := func(cpus ...int) *ProxyService {
		t.Helper()
		s := testerr.Must(New(testdev.Open(t, 0), ServiceOptions{Options: Options{Threads: &threads, CPUs: cpus}}))(t)
		t.Cleanup(func() { s.Close() })
		return s
	}
	start := func(s *ProxyService, want int) {
		t.Helper()
		testerr.Check(t, s.Start(t.Context()))
		testcmp.Equal(t, "threads", running(), want)
	}
	stop := func(s *ProxyService, want int) {
		t.Helper()
		testerr.Check(t, s.Stop(t.Context()))
		testcmp.Equal(t, "threads", running(), want)
	}
	cpu := firstCPU(t)
	a, b, other := service(), service(), service(cpu, cpu)
	start(a, 1)
	start(b, 1)
	start(other, 2)
	stop(a, 2)
	start(a, 2)
	stop(other, 1)
	nowhere := service(1 << 20)
	if err := nowhere.Start(t.Context()); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("on a CPU that there is not: %v", err)
	}
	stop(b, 1)
	stop(a, 0)
	start(b, 1)
	stop(b, 0)
}

// TestStillWhileStarted looks at a service while another goroutine starts it. The start may wait for
// a thread that others hold up. The look does not wait, and says that the service has not ended.
func TestStillWhileStarted(t *testing.T) {
	s := testerr.Must(New(testdev.Open(t, 0), ServiceOptions{}))(t)
	defer s.Close()
	s.life.Lock() // as Start does
	rounds := make(chan uint64, 1)
	go func() {
		n, _, _ := s.Internal().Still()
		rounds <- n
	}()
	select {
	case n := <-rounds:
		testcmp.Equal(t, "rounds", n, 0)
	case <-time.After(time.Minute):
		t.Error("the look waits")
	}
	s.life.Unlock()
	testerr.Check(t, s.Close())
	n, _, _ := s.Internal().Still()
	testcmp.Equal(t, "rounds of a closed service", n, inside.ProxyEnded)
}

// TestBusyTogether has Go get a turn's triggers together where C finds their connection in use.
func TestBusyTogether(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the queue writes to host memory")
	}
	queue := nativetest.NewQueue()
	queue.Busy(true)
	d := &idle{queue: queue.Queue}
	b := newBed(t, over(d))
	b.push(fifo.Trigger{Kind: layout.PortSignal}, 20)
	if _, _, err := b.thread.serve(); err != nil || d.updates != 16 {
		t.Errorf("Go served %d in a turn, not 16: %v", d.updates, err)
	}
}
