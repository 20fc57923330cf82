// Package proxyservice serves what GPU threads ask of the host. A [Proxy] is a
// goroutine on a thread of its own that polls a ring of triggers and hands each to
// a function. A [ProxyService] is a proxy whose function moves data and signals
// peers over connections, for port channels.
//
// The goroutine spends its life in C: it polls and waits there, and serves there
// what port channels ask of connections that offer that, so
// that a garbage collection in the process, which stops goroutines, holds up none
// of it. Everything else comes back to Go: triggers of the user's, other
// connections, and all that is wrong, of which Go makes the error.
package proxyservice

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/native"
)

// Handler serves a trigger. It is called by one goroutine, in the order of the
// ring. An error makes the group fail and ends the proxy.
type Handler func(fifo.Trigger) error

// Options are what a proxy's owner may choose; the zero value is right for most.
type Options struct {
	// CPUs are where the proxy's thread may run: those near the device, say.
	// Empty means anywhere.
	CPUs []int
	// Spin is how long the proxy polls without pause after it last had work. 0
	// means 1 millisecond; less than 0 not at all.
	Spin time.Duration
	// Sleep is the longest pause between polls of a proxy that has been idle for
	// long; pauses grow from a microsecond to it. 0 means 200 microseconds.
	Sleep time.Duration
	// OnFailure is told, once, why the proxy has ended before Stop. It should make
	// the group fail, so that kernels do not wait for what nobody serves. It is
	// called by the proxy's goroutine and must not call Stop.
	OnFailure func(error)
	// Count makes the proxy count what it does; see [Proxy.Snapshot].
	Count bool
	// Rank is this rank's number, for errors.
	Rank int
}

const (
	defaultSpin  = time.Millisecond
	defaultSleep = 200 * time.Microsecond
)

// Proxy is a goroutine that serves the triggers of a ring.
type Proxy struct {
	ring    *fifo.Ring
	loop    *loop
	work    work
	options Options
	counts  *counters // nil: nothing is counted

	life    sync.Mutex // held by Start and Stop
	running *run       // nil while stopped
	closed  bool       // for good
	failure atomic.Pointer[error]
}

// work is what a proxy does in Go. The last two are nil where nothing is native.
type work struct {
	// serve serves the trigger at a position of the ring.
	serve func(position uint64, t fifo.Trigger) error
	// goOn goes on with what serve began, and says whether there is more of it.
	goOn func() (bool, error)
	// failed gives the error of an operation that failed in C for a trigger.
	failed func(t fifo.Trigger, f native.Failure) error
	// flushFailed gives the error of a flush on a line that failed in C.
	flushFailed func(line int, f native.Failure) error
}

// run is the time between a Start and the end of the goroutine.
type run struct {
	orders  orders
	ready   chan error // the thread is set up, or cannot be
	drained bool       // nothing was left; set before done is closed
	done    chan struct{}
}

// NewProxy makes a proxy that is not started. The ring stays the caller's, who
// closes it after Stop.
//
// Errors: ErrInvalid for a handler that is nil, or pauses that are negative.
func NewProxy(ring *fifo.Ring, handler Handler, o Options) (*Proxy, error) {
	if handler == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: make a proxy", "the handler is nil").At(o.Rank, mscclgo.NoRank)
	}
	return newProxy(ring, work{
		serve: func(_ uint64, t fifo.Trigger) error { return handler(t) },
		goOn:  func() (bool, error) { return false, nil },
	}, o)
}

func newProxy(ring *fifo.Ring, w work, o Options) (*Proxy, error) {
	if o.Sleep < 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: make a proxy", "the longest pause is %v", o.Sleep).At(o.Rank, mscclgo.NoRank)
	}
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Sleep == 0 {
		o.Sleep = defaultSleep
	}
	l, err := newLoop(o.Spin, o.Sleep)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "proxyservice: make a proxy", "%w", err).At(o.Rank, mscclgo.NoRank)
	}
	p := &Proxy{ring: ring, loop: l, work: w, options: o}
	if o.Count {
		p.counts = &counters{}
	}
	return p, nil
}

// Start starts the goroutine and returns when it polls. ctx bounds only that. A
// proxy that was stopped can be started again.
//
// Errors: ErrInvalid when it runs already or one of Options.CPUs is none; what
// made it fail before, as then the ring cannot be served any more.
func (p *Proxy) Start(ctx context.Context) error {
	const op = "proxyservice: start"
	if ctx.Err() != nil {
		return mscclgo.FromContext(ctx, op, "it was not begun").At(p.options.Rank, mscclgo.NoRank)
	}
	p.life.Lock()
	defer p.life.Unlock()
	if err := p.Err(); err != nil {
		return err
	}
	if p.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it is closed").At(p.options.Rank, mscclgo.NoRank)
	}
	if p.running != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it is running").At(p.options.Rank, mscclgo.NoRank)
	}
	r := &run{ready: make(chan error, 1), done: make(chan struct{})}
	go p.run(r)
	if err := <-r.ready; err != nil {
		return err
	}
	p.running = r
	return nil
}

// Stop serves what has been pushed, and ends the goroutine. What kernels push
// later waits in the ring for another Start. It is safe to call twice.
//
// Errors: what made the proxy fail; ErrTimeout and ErrAborted when ctx ends
// first, which is a failure too: triggers are left that kernels wait for.
func (p *Proxy) Stop(ctx context.Context) error { return p.end(ctx, false) }

// end stops the goroutine, for good if said so.
func (p *Proxy) end(ctx context.Context, forGood bool) error {
	p.life.Lock()
	defer p.life.Unlock()
	p.closed = p.closed || forGood
	r := p.running
	if r == nil {
		if n := p.ring.Len(); forGood && n > 0 {
			p.fail(mscclgo.Errorf(mscclgo.ErrAborted, "proxyservice: close", "%d triggers are in the ring, pushed after it was stopped", n).At(p.options.Rank, mscclgo.NoRank))
		}
		return p.Err()
	}
	p.running = nil
	r.orders.stop.Store(1)
	select {
	case <-r.done:
	case <-ctx.Done():
		r.orders.quit.Store(1)
		<-r.done
		if !r.drained {
			p.fail(mscclgo.FromContext(ctx, "proxyservice: stop", fmt.Sprintf("%d triggers are in the ring, and more may come or a flush has not ended; let the kernels end first", p.ring.Len())).At(p.options.Rank, mscclgo.NoRank))
		}
	}
	return p.Err()
}

// Err gives what made the proxy fail, or nil.
func (p *Proxy) Err() error {
	if err := p.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail keeps the first error and tells the owner.
func (p *Proxy) fail(err error) {
	if !p.failure.CompareAndSwap(nil, &err) {
		return
	}
	p.counts.failed()
	if p.options.OnFailure != nil {
		p.options.OnFailure(err)
	}
}

// run is the goroutine.
func (p *Proxy) run(r *run) {
	// The thread ends with the goroutine, which never unlocks it: nobody else
	// gets one that is bound to some CPUs.
	runtime.LockOSThread()
	defer close(r.done)
	if err := p.prepareThread(); err != nil {
		r.ready <- err
		return
	}
	r.ready <- nil
	if err := p.serve(r); err != nil {
		p.fail(err)
	}
}

// prepareThread sets the thread's affinity and makes its short sleeps short.
func (p *Proxy) prepareThread() error {
	if err := setAffinity(p.options.CPUs); err != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: start", "cannot run on CPUs %v: %w", p.options.CPUs, err).At(p.options.Rank, mscclgo.NoRank)
	}
	setTimerSlack()
	return nil
}

// serve serves until it is stopped or something fails. Most of it the loop in C
// does. A panic of the handler is a failure.
func (p *Proxy) serve(r *run) (err error) {
	var t fifo.Trigger // being served
	defer func() {
		if cause := recover(); cause != nil {
			err = mscclgo.Errorf(mscclgo.ErrSystem, p.op(t), "the handler panicked: %v\n%s", cause, debug.Stack()).At(p.options.Rank, mscclgo.NoRank)
		}
	}()
	underWay := false // in Go
	for {
		switch p.loop.serve(native.RingOf(p.ring), &r.orders, p.counts, underWay) {
		case endQuit:
			return nil
		case endDrained:
			r.drained = true
			return nil
		case endYours:
			if err := p.serveBatch(&t); err != nil {
				return err
			}
		case endIdle:
			runtime.Gosched() // what is under way may need this goroutine's processor
		case endFailed:
			t, _ = p.ring.Poll()
			f, _ := p.loop.failure()
			return p.wrap(t, p.work.failed(t, f))
		case endFlushFailed:
			f, line := p.loop.failure()
			return p.work.flushFailed(line, f)
		}
		if underWay, err = p.work.goOn(); err != nil {
			return err
		}
	}
}

// batchSize is how many triggers Go serves before it goes back to C, so that the
// crossing costs a user's triggers little.
const batchSize = 16

// serveBatch serves triggers in Go; t is the last.
func (p *Proxy) serveBatch(t *fifo.Trigger) error {
	for range batchSize {
		var ok bool
		if *t, ok = p.ring.Poll(); !ok {
			break
		}
		if err := p.work.serve(p.ring.Popped(), *t); err != nil {
			return p.wrap(*t, err)
		}
		p.counts.served(t.Kind)
		if err := p.ring.Pop(1); err != nil {
			return err
		}
	}
	return nil
}

// op says what is being done, for errors.
func (p *Proxy) op(t fifo.Trigger) string {
	return fmt.Sprintf("proxyservice: serve trigger %d of kind %d", p.ring.Popped(), t.Kind)
}

// wrap gives the error of a trigger its operation, and keeps its kind and peer.
func (p *Proxy) wrap(t fifo.Trigger, err error) error {
	peer := mscclgo.NoRank
	var e *mscclgo.Error
	if errors.As(err, &e) {
		peer = e.Peer
	}
	return mscclgo.Errorf(mscclgo.KindOf(err), p.op(t), "%w", err).At(p.options.Rank, peer)
}
