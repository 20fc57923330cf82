package bootstrap

import (
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

const (
	// abortPatience bounds how long Abort waits for its news to be sent.
	abortPatience = time.Second
	// newsPatience bounds how long a call that the failure ends waits until the news has been sent.
	newsPatience = 100 * time.Millisecond
)

// A failure is the reason why the group failed. A rank keeps the first that it
// learns of.
type failure struct {
	watch.Fact
	sent time.Time // to the neighbours
}

func failed(f watch.Fact) frame { return frame{kind: frameFailed, payload: f.Encode()} }

// Done returns a channel that is closed when the group fails, and not by Close.
func (b *Bootstrap) Done() <-chan struct{} { return b.failed }

// Err returns nil as long as the group has not failed. Then it returns an Error whose peer is the
// rank that failed; on that rank itself it names none. Its kind is the same on all ranks: ErrRemote if a rank was
// lost; the kind of the cause given to Abort or Blame, or ErrAborted and ErrRemote if the cause is no Error;
// ErrTimeout if a rank's time for Connect was up while it waited for the one that is the peer.
func (b *Bootstrap) Err() error {
	select {
	case <-b.failed:
		return b.errFailed("bootstrap: group")
	default:
		return nil
	}
}

// errFailed is the error of an op on a failed group.
func (b *Bootstrap) errFailed(op string) error {
	return b.failure.Failed(op, b.rank) // set before failed was closed, and never again
}

// Abort fails the group with cause: all ranks' Done channels are closed, and their
// blocked calls return. It returns when the news has been sent, or after a second.
// A group that has failed already keeps its first failure. cause must not be nil;
// the other ranks receive its text and its kind. If it is an ErrTimeout or ErrRemote that names a peer,
// that rank is the one that failed, as with [Bootstrap.Blame].
func (b *Bootstrap) Abort(cause error) {
	if cause == nil {
		cause = errors.New("no cause was passed")
	}
	b.Internal().Blame(watch.Culprit(cause, b.rank), cause)
}

func (b insideBootstrap) Blame(rank int, cause error) {
	if rank < 0 || rank >= b.size {
		rank = b.rank
	}
	awaitSent(b.fail(watch.Blamed(b.rank, rank, cause)), abortPatience)
}

// fail makes f the group's failure, unless it has one, and sends it to the
// neighbours, which pass it on. It returns the frames that carry the news.
//
// It reaches everyone: whichever ranks are dead, each part of the tree that is
// left has a rank that was connected to a dead one. And it reaches them before the
// end of this process can, which would look like a failure of this rank: a program
// often ends when a call fails, so calls fail once the news is sent.
func (b *Bootstrap) fail(f watch.Fact) []*outgoing {
	b.mu.Lock()
	earlier := b.failure != nil
	if earlier || b.closing {
		b.mu.Unlock()
		if earlier {
			<-b.failed
		}
		return nil
	}
	b.failure = &failure{f, time.Now()}
	news := b.tellAll(failed(f))
	b.mu.Unlock()
	b.log.Error("bootstrap: the group failed", "failed", f.Culprit(), "seen by", f.Rank, "why", f.Text)
	b.report(f)
	awaitSent(news, newsPatience)
	close(b.failed)
	return news
}

// tellAll queues f on all connections. The caller holds b.mu.
func (b *Bootstrap) tellAll(f frame) (sent []*outgoing) {
	for _, p := range b.peers {
		for c := range p.conns {
			if c.up {
				sent = append(sent, c.enqueue(f))
			}
		}
	}
	return sent
}

// awaitSent waits until the frames are sent or dropped, or the patience is over.
func awaitSent(frames []*outgoing, patience time.Duration) {
	over := time.NewTimer(patience)
	defer over.Stop()
	for _, o := range frames {
		select {
		case <-o.done:
		case <-over.C:
			return
		}
	}
}

// errLeft is the error of an op that needs a departed rank. It may have left because the group had failed.
func (b *Bootstrap) errLeft(op string, rank int) error {
	b.mu.Lock()
	failed := b.failure != nil
	b.mu.Unlock()
	if failed {
		<-b.failed
		return b.errFailed(op)
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, op, "rank %d has left the group", rank).At(b.rank, rank)
}
