package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// verdictPatience bounds how long a rank that cannot be connected waits for the
// rendezvous to say which rank has failed, and to take its own word.
const verdictPatience = time.Second

// alonePatience bounds how long a rank whose connection to the rendezvous has ended waits for the
// others, where the heartbeat time-out is not longer. It may be about to be connected, so that
// the rendezvous is no longer needed, or the rendezvous has told the others that it is dead.
const alonePatience = 2 * time.Second

// shortTime is how long a rank may have no descriptor for one that dials while the ranks
// connect to each other.
const shortTime = time.Second

// short fails the group because this rank cannot accept those that must connect to it, which
// would wait for it until their time is up.
func (b *Bootstrap) short(err error) {
	b.mu.Lock()
	linked := b.linked
	b.mu.Unlock()
	if !linked {
		b.Abort(mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "this rank has accepted no peer for %v: %w", shortTime, err).At(b.rank, mscclgo.NoRank))
	}
}

// A formation is a rank's connection to the rendezvous while the ranks that have the
// table connect to each other. Until then not every rank could hear of a failure from
// its neighbours, which may be what failed: the rendezvous hears of each rank's end, and
// tells all.
type formation struct {
	b     *Bootstrap
	nc    *pulse
	over  chan struct{} // closed when link has returned
	ended chan struct{} // closed when the rendezvous says no more
}

// assemble connects this rank with its parent in the tree and returns when all
// ranks have done so. nc is the connection to the rendezvous, which it closes.
func (b *Bootstrap) assemble(ctx context.Context, nc *pulse) error {
	f := &formation{b: b, nc: nc, over: make(chan struct{}), ended: make(chan struct{})}
	b.acc.WhenShort(shortTime, b.short)
	go f.listen()
	err := f.link(ctx)
	close(f.over)
	if err == nil {
		b.mu.Lock()
		b.linked = true
		b.mu.Unlock()
		b.wg.Go(b.watchNeighbours)
		f.send(frame{kind: frameConnected})
	} else {
		f.report()
	}
	nc.Close()
	<-f.ended
	return err
}

// listen receives why the group fails, if it does.
func (f *formation) listen() {
	defer close(f.ended)
	b := f.b
	news, err := f.nc.readNews()
	b.mu.Lock()
	linked := b.linked
	b.mu.Unlock()
	switch {
	case linked:
	case err != nil && f.nc.silent.Load():
		b.fail(watch.Lost(b.rank, 0, "the rendezvous, which it holds, has given no sign of life before the ranks were connected: is it stopped?"))
	case err != nil && b.id.hosted && b.rank != 0 && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded):
		// Else each rank would take the next above, which ends because of it, for dead.
		b.fail(watch.Lost(b.rank, 0, fmt.Sprintf("the rendezvous, which it holds, ended before the ranks were connected: its process has ended (%v)", err)))
	case err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded):
		f.alone(err)
	case err == nil && news.kind == frameFailed:
		if why, err := watch.DecodeFact(news.payload, b.size); err == nil {
			b.fail(why)
		}
	}
}

// alone fails the group, from which this rank hears no more, unless it is connected soon.
func (f *formation) alone(err error) {
	b := f.b
	patience := time.NewTimer(max(alonePatience, b.options.HeartbeatTimeout))
	defer patience.Stop()
	select {
	case <-f.over:
	case <-b.failed:
	case <-patience.C:
		b.fail(watch.Lost(toRendezvous, b.rank, fmt.Sprintf("its connection to the rendezvous ended before the ranks were connected (%v)", err)))
	}
}

// send tells the rendezvous something, which may have ended.
func (f *formation) send(news frame) {
	f.nc.SetDeadline(time.Now().Add(verdictPatience))
	f.nc.Write(news.encode())
}

// report has the rendezvous tell all ranks why the group failed, and returns when it has
// taken the news.
func (f *formation) report() {
	select {
	case <-f.ended: // it said so itself, or is gone
		return
	default:
	}
	<-f.b.failed
	f.send(failed(f.b.failure.Fact))
	<-f.ended // the deadline ends it
}

// link returns when all ranks are connected. If they will not be, the group has failed.
func (f *formation) link(ctx context.Context) error {
	b := f.b
	c, err := b.begin(ctx, barrier, 0)
	if err != nil {
		return f.failed(ctx, err, nil)
	}
	defer c.end()
	if p := parent(b.rank); p >= 0 {
		c.waitFor(p)
		err = f.connect(ctx, p)
	}
	if err == nil {
		_, err = c.gather(nil)
	}
	if err == nil {
		return nil
	}
	return f.failed(ctx, err, c.awaits())
}

// connect connects this rank to its parent p. While that is only slow it goes on.
func (f *formation) connect(ctx context.Context, p int) error {
	for {
		_, err := f.b.connTo(ctx, opConnect, f.b.peers[p])
		var slow net.Error
		if err == nil || ctx.Err() != nil || !errors.As(err, &slow) || !slow.Timeout() {
			return err
		}
	}
}

// failed fails the group because of err, met while this rank waited for others, and
// returns what Connect does.
func (f *formation) failed(ctx context.Context, err error, awaited []int) error {
	b := f.b
	if ctx.Err() == nil {
		// An unreachable rank may have failed, or ended because another did. The
		// rendezvous knows.
		patience := time.NewTimer(verdictPatience)
		defer patience.Stop()
		select {
		case <-b.failed:
		case <-f.ended:
		case <-patience.C:
		}
	}
	select {
	case <-b.failed:
		return b.errFailed(opConnect)
	default:
	}
	switch {
	case len(awaited) == 0 || errors.Is(ctx.Err(), context.Canceled) || handshake.Shortage(err):
		b.Abort(err)
		return err
	case ctx.Err() != nil:
		b.fail(watch.About(b.rank, mscclgo.ErrTimeout, awaited[0], fmt.Sprintf("rank %d's time to connect was up, and it waited for %s", b.rank, rankList(awaited))))
	default:
		b.fail(watch.Lost(b.rank, awaited[0], fmt.Sprintf("rank %d could not connect to it: %v", b.rank, err)))
	}
	return b.errFailed(opConnect)
}
