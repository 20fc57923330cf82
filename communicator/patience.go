package communicator

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// A rank that compiles what a kernel or a collective needs keeps others waiting, which may take longer than
// Options.Timeout. While any rank of the group compiles, the deadlines of waits are put off: they are never less
// than half of Options.Timeout away. Ranks tell in their status that they compile.

// mostPatience is by how long the deadline of a wait is put off at most: a compiler may hang.
const mostPatience = 10 * time.Minute

// patient returns a context that ends with Options.Timeout as its deadline, which is put off while a rank compiles.
func (c *Communicator) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.failure == nil || ctx.Err() != nil {
		return context.WithTimeout(ctx, c.options.Timeout)
	}
	p := &patience{Context: ctx, done: make(chan struct{})}
	half := c.options.Timeout / 2
	start, left := time.Now(), c.options.Timeout-half // after the timer's first
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(half, func() {
		if c.failure.observer.compiling() && time.Since(start) < mostPatience {
			left = c.options.Timeout
		}
		if left <= 0 {
			p.end(context.DeadlineExceeded)
			return
		}
		step := min(left, max(half, 1))
		left -= step
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.err == nil {
			p.timer.Reset(step)
		}
	})
	p.stop = context.AfterFunc(ctx, func() { p.end(ctx.Err()) })
	return p, func() { p.end(context.Canceled) }
}

// outlasting returns a context that ends so long after ctx.
func outlasting(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	p := &patience{Context: context.WithoutCancel(ctx), done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(math.MaxInt64, func() { p.end(ctx.Err()) })
	p.stop = context.AfterFunc(ctx, func() { p.timer.Reset(by) })
	return p, func() { p.end(context.Canceled) }
}

// patience is a context with a deadline that is put off.
type patience struct {
	context.Context
	done chan struct{}
	stop func() bool

	mu    sync.Mutex
	timer *time.Timer
	err   error
}

func (p *patience) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		close(p.done)
		p.timer.Stop()
		p.stop()
	}
}

// Done and Err are as of a context.
func (p *patience) Done() <-chan struct{} { return p.done }

func (p *patience) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// compiling reports whether a rank of the group compiles.
func (o *observer) compiling() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.anyCompiles()
}

// anyCompiles is compiling for a caller that holds mu. A rank that is stopped does not compile, though its last status may
// say so.
func (o *observer) anyCompiles() bool {
	if o.board == nil {
		return false
	}
	for rank, l := range o.lives {
		if s := o.board.StatusOf(rank); s != nil && s.Compiles && l.beat != watch.Gone && !o.isMute(rank) {
			return true
		}
	}
	return false
}

// putOff sets the word by which kernels put off the deadlines of their waits, if a wait of this rank has come
// to the second half of its time while a rank compiles. Once all such waits are over, it is 0 again: a wait that
// began meanwhile still has its own time. The caller holds mu.
func (o *observer) putOff(now time.Time) {
	longest := time.Duration(0)
	for _, w := range o.waits {
		if !w.timedOut {
			longest = max(longest, w.lasted+now.Sub(w.seen))
		}
	}
	timeout := o.timeout
	switch extra := o.extra; {
	case longest > extra+timeout/2 && extra < mostPatience && o.anyCompiles():
		o.extra, o.extended = longest, now
	case extra > 0 && now.Sub(o.extended) > timeout+noteFresh:
		o.extra = 0
	default:
		return
	}
	o.delay(o.extra)
}

// putOff puts off the deadlines of all waits of this rank's kernels.
func (f *failure) putOff(extra time.Duration) {
	f.with(func(words *layout.GroupStatus) { atomic.StoreUint64(&words.PutOff, uint64(extra)) })
}
