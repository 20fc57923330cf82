// Package proxyservice serves what GPU threads ask of the host. A [Proxy] has a
// goroutine on a thread poll a ring of triggers and call a handler for each. A
// [ProxyService] is a proxy that moves data and signals peers over connections, for port
// channels.
//
// The goroutine spends its life in C. There it polls, decodes, looks ids up, checks,
// tracks flushes and counts, for all triggers. Where a connection's transport has a
// queue for threads in C, it also does there what port channels ask for, so that a
// garbage collection, which stops goroutines, delays none of it. It comes back to Go
// with jobs for the user's handler, jobs for other transports, and triggers that are
// wrong, whose errors Go makes.
package proxyservice

// #include "loop.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
)

// Handler serves a trigger. It is called by one goroutine, in the order of the
// ring. Until it returns, nothing else of the ring is served. An error makes the group
// fail and ends the proxy, as do a panic and [runtime.Goexit]. It may call all methods but
// Stop and Close, which wait for it.
//
// The context ends when the group does (Options.Ends), or when Stop or Close wait no longer for
// what is in the ring: a handler that may wait returns then, with an error.
type Handler func(context.Context, fifo.Trigger) error

// Options configure a [Proxy]. The zero value is right for most uses.
type Options struct {
	// CPUs are the CPUs that the proxy's thread may run on, for example the CPUs near the
	// device. Empty means any.
	CPUs []int
	// Threads are shared with the other proxies that have them. nil means a thread of the
	// proxy's own. A proxy with a handler of the user's has its own in any case: nobody
	// knows how long a handler takes.
	Threads *Threads
	// Spin is how long the proxy polls without a pause after it last had work. 0
	// means 1 millisecond, less than 0 not at all.
	Spin time.Duration
	// Sleep is the longest pause between polls of an idle proxy. Pauses grow from a
	// microsecond to it. 0 means 200 microseconds.
	Sleep time.Duration
	// OnFailure is called once, with the reason, when the proxy ends before Stop, or
	// leaves triggers that kernels wait for. It should make the group fail, so that
	// they do not. The proxy's goroutine calls it, or one for this call where the proxy shares its
	// thread, or the goroutine of Stop or Close. It must not call these, nor Start.
	OnFailure func(error)
	// Ends is closed when the group has failed, as Done of a communicator is. nil never is.
	Ends <-chan struct{}
	// Logger logs what makes the proxy fail. nil discards.
	Logger *slog.Logger
	// Count makes the proxy count what it does; see [Proxy.Snapshot].
	Count bool
	// Rank is this rank's number, for errors.
	Rank int
}

const (
	defaultSpin  = time.Millisecond
	defaultSleep = 200 * time.Microsecond
)

// Proxy serves the triggers of a ring, on a goroutine of its own or one of [Threads].
type Proxy struct {
	ring    *fifo.Ring
	loop    *loop
	handler Handler
	tables  atomic.Pointer[tables] // of a ProxyService
	waiting *atomic.Int64          // triggers in backlogs
	options Options
	trace   *native.Trace // or nil
	races   *race.Finder  // or nil

	life    sync.Mutex
	running *run // from Start until Stop has seen the goroutine end; guarded by life
	closed  bool // for good; guarded by life
	failure atomic.Pointer[error]
	explain func(error) error // of a failure; see inside.Telling
	current *job              // being done, or done last; the goroutine's
	serving *atomic.Uint64    // see loop.h
}

// run is the time between a Start and the end of the goroutine.
type run struct {
	proxy   *Proxy
	pinned  runtime.Pinner        // the ring, while a thread in C has it
	release func()                // the ring may be closed
	ready   chan error            // the thread is set up, or cannot be
	thread  atomic.Int64          // the number of the one that serves it or calls OnFailure; set before ready
	turns   *explore.Party        // as whom it takes part in what is explored, or nil
	worked  bool                  // in turns, since it gave them away last
	quit    atomic.Pointer[error] // why it must end at once, though triggers are left
	done    chan struct{}
	ctx     context.Context // of the handler
	cancel  context.CancelCauseFunc
}

// errEnded is why the contexts of handlers end with the group.
var errEnded = errors.New("the group has ended")

// watch ends the handler's context with the group.
func (r *run) watch(ends <-chan struct{}) {
	select {
	case <-ends:
		r.cancel(errEnded)
	case <-r.ctx.Done():
	}
}

// ended reports whether the goroutine serves the proxy no more.
func (r *run) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// itself reports whether it is called by the run's own goroutine.
func (r *run) itself() bool {
	return !r.ended() && r.thread.Load() == int64(unix.Gettid()) // once ended, the number may be another thread's
}

// NewProxy returns a proxy that is not started. The ring stays the caller's, and must
// be closed after Stop.
//
// Errors: ErrInvalid for a ring or handler that is nil, or a negative Options.Sleep.
func NewProxy(ring *fifo.Ring, handler Handler, o Options) (*Proxy, error) {
	switch {
	case ring == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opNew, "the ring is nil").At(o.Rank, mscclgo.NoRank)
	case handler == nil:
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opNew, "the handler is nil").At(o.Rank, mscclgo.NoRank)
	}
	return newProxy(ring, handler, 0, o)
}

// What is done, for errors.
const (
	opNew   = "proxyservice: new proxy"
	opStart = "proxyservice: start"
	opStop  = "proxyservice: stop"
)

// newProxy returns a proxy whose handler serves the triggers of the kinds from
// firstUser.
func newProxy(ring *fifo.Ring, handler Handler, firstUser int, o Options) (*Proxy, error) {
	if o.Sleep < 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opNew, "Options.Sleep is %v", o.Sleep).At(o.Rank, mscclgo.NoRank)
	}
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Sleep == 0 {
		o.Sleep = defaultSleep
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.CPUs = slices.Clone(o.CPUs) // for Start
	p := &Proxy{ring: ring, loop: newLoop(o, firstUser), handler: handler, options: o}
	p.waiting, p.serving = p.loop.waiting(), p.loop.serving()
	p.races, _ = race.Current() // devices have told an error
	return p, nil
}

// Start starts the goroutine and returns once it polls. ctx bounds only that. A
// proxy that was stopped can be started again.
//
// Errors: ErrInvalid when the proxy runs already, it or its ring is closed, or it may
// not run on one of Options.CPUs; after a failure, that failure, since the ring cannot
// be served any more.
func (p *Proxy) Start(ctx context.Context) error {
	if ctx.Err() != nil {
		return mscclgo.FromContext(ctx, opStart, "it was not begun").At(p.options.Rank, mscclgo.NoRank)
	}
	p.life.Lock()
	defer p.life.Unlock()
	if err := p.Err(); err != nil {
		return err
	}
	if p.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, opStart, "it is closed").At(p.options.Rank, mscclgo.NoRank)
	}
	if p.running != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, opStart, "it is running").At(p.options.Rank, mscclgo.NoRank)
	}
	release, err := p.ring.Internal().Serve(fmt.Sprintf("the proxy of rank %d", p.options.Rank))
	if err != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, opStart, "%w", err).At(p.options.Rank, mscclgo.NoRank)
	}
	r := &run{proxy: p, release: release, ready: make(chan error, 1), done: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	if p.handler != nil && p.options.Ends != nil {
		go r.watch(p.options.Ends)
	}
	p.loop.begin()
	r.takesPart()
	threads := p.options.Threads
	if threads == nil || p.handler != nil || r.turns != nil {
		threads = &Threads{}
	}
	threads.start(r)
	if err := <-r.ready; err != nil {
		r.cancel(err)
		return err
	}
	p.running = r
	return nil
}

// Stop serves what has been pushed, and ends the goroutine. What kernels push
// later waits in the ring for another Start. It is safe to call twice.
//
// Errors: what made the proxy fail; ErrTimeout and ErrAborted when ctx ends first,
// which is a failure too, since kernels wait for the triggers that are left. Stop then
// gives the handler a second to return; another Stop returns nil once the goroutine has ended, and
// [Proxy.Err] the failure. ErrInvalid when the handler or OnFailure calls
// it on the proxy's goroutine.
func (p *Proxy) Stop(ctx context.Context) error {
	_, err := p.end(ctx, false)
	return err
}

// end stops the goroutine, for good if forGood is set. It returns the run that has not
// ended, or nil.
func (p *Proxy) end(ctx context.Context, forGood bool) (*run, error) {
	p.life.Lock()
	r := p.running
	before := p.failure.Load()
	if r != nil && r.itself() {
		p.life.Unlock()
		return r, mscclgo.Errorf(mscclgo.ErrInvalid, opStop, "the proxy's own goroutine calls it, and it would wait for that goroutine; call it in another").At(p.options.Rank, mscclgo.NoRank)
	}
	p.closed = p.closed || forGood
	if r != nil {
		p.loop.stop()
	}
	p.life.Unlock()
	if r == nil {
		if n := p.ring.Len(); forGood && n > 0 {
			p.fail(mscclgo.Errorf(mscclgo.ErrAborted, "proxyservice: close", "%d triggers are in the ring, pushed after it was stopped", n).At(p.options.Rank, mscclgo.NoRank))
		}
		return nil, p.stopped(before, forGood)
	}
	explore.Current().Self().Until("stop a proxy", false, r.ended)
	if r.ended() {
		ctx = context.Background()
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		why := mscclgo.FromContext(ctx, opStop, fmt.Sprintf("%d triggers are in the ring, and more may come or a flush has not ended%s; let the kernels end first", p.ring.Len(), p.inHand(", while"))).At(p.options.Rank, mscclgo.NoRank)
		p.quit(r, &late{why})
		before = nil
		select {
		case <-r.done:
		case <-time.After(patience):
			p.fail(&late{mscclgo.FromContext(ctx, opStop, fmt.Sprintf("the handler, or a call of the transport, has not returned; %d triggers are in the ring%s", p.ring.Len(), p.inHand(";"))).At(p.options.Rank, mscclgo.NoRank)})
			return r, p.Err()
		}
	}
	p.life.Lock()
	defer p.life.Unlock()
	if p.running == r {
		p.running = nil
	}
	return nil, p.stopped(before, forGood)
}

// late is the failure of a Stop whose context has ended.
type late struct{ error }

func (l *late) Unwrap() error { return l.error }

// stopped returns the error of a stop once the run has ended. before is the failure when it began: a Stop that timed
// out has told that one already.
func (p *Proxy) stopped(before *error, forGood bool) error {
	if told := (*late)(nil); before != nil && !forGood && errors.As(*before, &told) {
		return nil
	}
	return p.Err()
}

// quit has a run end at once, unless it has ended.
func (p *Proxy) quit(r *run, why error) {
	p.life.Lock()
	defer p.life.Unlock()
	if p.running == r {
		r.quit.CompareAndSwap(nil, &why)
		r.cancel(why)
		p.loop.quit()
	}
}

// patience is how long Close waits for what is in the ring, and Stop and Close for a
// handler that must return.
const patience = time.Second

// Err returns what made the proxy fail, or nil.
func (p *Proxy) Err() error {
	err := p.failure.Load()
	switch {
	case err == nil:
		return nil
	case p.explain != nil:
		return p.explain(*err)
	}
	return *err
}

// fail keeps the first error and reports it.
func (p *Proxy) fail(err error) {
	if !p.failure.CompareAndSwap(nil, &err) {
		return
	}
	p.options.Logger.Error("the proxy failed", "rank", p.options.Rank, "err", err)
	if p.options.OnFailure != nil {
		p.options.OnFailure(err)
	}
}

// attend does what a turn in C has left to Go, for the reason why. It reports whether the
// run is over, and the error if it has failed. A panic, which can only be the handler's,
// is a failure.
func (p *Proxy) attend(r *run, why C.proxy_end, idle bool) (over bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			over, err = true, p.wrap(p.current, mscclgo.Errorf(mscclgo.ErrSystem, "handle", "the handler panicked: %v\n%s", cause, debug.Stack()))
		}
		if err != nil {
			p.loop.finish()
		}
		if over || err != nil {
			p.serving.Store(0)
		}
	}()
	switch why {
	case C.PROXY_QUIT:
		return true, *r.quit.Load()
	case C.PROXY_DRAINED:
		return true, nil
	case C.PROXY_JOBS:
		err = p.work(r)
	case C.PROXY_QUERY:
		if idle {
			runtime.Gosched() // the transport may need this goroutine's processor
		}
		var reached bool
		r.turns.Looking(func() { reached, err = p.tables.Load().links[p.loop.c.connection].reached() })
		p.loop.c.reached = C.bool(reached)
	case C.PROXY_FAILED:
		j := &p.loop.c.jobs[0]
		err = p.wrap(j, p.tables.Load().failed(j, p.loop.failed()))
	case C.PROXY_FLUSH_FAILED:
		err = p.tables.Load().links[p.loop.c.connection].flushFailed(p.loop.failed())
	}
	return err != nil, err
}

// exited returns the error of a handler that has ended the goroutine.
func (p *Proxy) exited() error {
	p.loop.finish()
	p.serving.Store(0)
	return p.wrap(p.current, mscclgo.Errorf(mscclgo.ErrSystem, "handle", "the handler ended the proxy's goroutine by runtime.Goexit, which FailNow of a test calls too"))
}

// work does the jobs that C has left.
func (p *Proxy) work(r *run) error {
	for i := range p.loop.c.taken {
		j := &p.loop.c.jobs[i]
		r.turns.Step("serve a trigger")
		p.current = j
		if p.races != nil {
			asked := p.races.Asked(p.loop.entry(j))
			j.place, j.known = C.uint32_t(asked.Place), C.uint32_t(asked.Known)
		}
		p.serving.Store((uint64(j.position)+1)<<8 | uint64(j.trigger.kind))
		err := p.do(r, j)
		if err == errStalled {
			p.loop.c.stalled = true
			if r.turns != nil {
				r.turns.Look("find a connection busy", i > 0)
			}
			return nil
		}
		if why := r.quit.Load(); err != nil && why != nil { // for which the handler has returned
			return *why
		}
		if err != nil {
			return p.wrap(j, err)
		}
		p.serving.Store(0)
		p.loop.c.done++
		if why := r.quit.Load(); why != nil {
			return *why // the ring may be closed by now
		}
		if err := p.ring.Pop(1); err != nil {
			return err
		}
	}
	return nil
}

// Serving returns the trigger that the user's handler serves now, or that the transport
// of a port channel cannot take yet: its position in the ring and its kind. ok is false if
// there is none. It may be called from any goroutine; one that sees the same trigger again
// and again knows that it holds up all behind it.
func (p *Proxy) Serving() (position uint64, kind uint8, ok bool) {
	s := p.serving.Load()
	runtime.KeepAlive(p) // the word lies in C, and goes with it
	return s>>8 - 1, uint8(s), s != 0
}

// inHand returns what an error says of the trigger that is served, behind a word, if there is one.
func (p *Proxy) inHand(word string) string {
	position, kind, ok := p.Serving()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s trigger %d of kind %d is served", word, position, kind)
}

// do does a job. It returns errStalled if that is not possible yet.
func (p *Proxy) do(r *run, j *job) error {
	switch j.verdict {
	case C.PROXY_USER:
		if err := p.handler(r.ctx, triggerOf(j)); err != nil {
			return err
		}
		if p.races != nil {
			p.races.Handled()
		}
		p.served(j, native.WhereOf(0, native.NoPeer))
		return nil
	case C.PROXY_MOVE:
		return p.move(r, j)
	default:
		return p.tables.Load().wrong(j)
	}
}

// wrap adds the trigger to its error, whose kind and peer it keeps.
func (p *Proxy) wrap(j *job, err error) error {
	peer := mscclgo.NoRank
	var e *mscclgo.Error
	if errors.As(err, &e) {
		peer = e.Peer
	}
	op := fmt.Sprintf("proxyservice: serve trigger %d of kind %d", j.position, j.trigger.kind)
	return mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(p.options.Rank, peer)
}
