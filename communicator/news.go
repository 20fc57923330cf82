package communicator

import (
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// lostPatience is how long news of the cause may take where a connection breaks because of
// it: a rank that hears of a failure may end before its neighbours have heard.
const lostPatience = 100 * time.Millisecond

// tell fails the group because of a fact of this rank's, which has a cause: at once if this rank is to blame, and else unless
// there are news of another failure, of which the fact may come.
func (c *Communicator) tell(f watch.Fact) {
	if f.Kind != mscclgo.ErrRemote || f.Peer() == mscclgo.NoRank || c.awaitNews() {
		c.failure.failBy(f.Peer(), f.Cause)
	}
}

// awaitNews gives the news of a failure of the group, of which an error of this rank's may
// come, time to arrive. It reports whether there is none: then that error is the failure. Where a
// rank is suspected to be silent, others may have judged it so already, and cannot tell if their news
// would pass through it: then this rank comes to its own verdict first.
func (c *Communicator) awaitNews() bool {
	if !grace.Wait(c.patience, c.failure.stop, c.boot.Done()) {
		return false
	}
	for start := time.Now(); c.failure.observer.suspects() && time.Since(start) < c.options.HeartbeatTimeout; {
		if !grace.Wait(reportInterval, c.failure.stop, c.boot.Done()) {
			return false
		}
	}
	return !c.isClosed() && c.failure.err() == nil
}

// explained is causeFirst of an error that a call returns. If it is of another rank's failure, it gives the news of why time
// to arrive.
func (c *Communicator) explained(err error) error {
	if watch.Other(err) {
		c.awaitNews()
	}
	return c.causeFirst(err)
}

// causeFirst puts the group's error before a failure of a proxy service, a connection or the like,
// which may only be what came of it.
func (c *Communicator) causeFirst(failure error) error {
	cause := c.failure.err()
	if cause == nil || failure == nil || !c.endedWithGroup(failure) && (errors.Is(failure, cause) || errors.Is(cause, failure)) {
		return failure
	}
	return c.joinOnce(cause, failure)
}
