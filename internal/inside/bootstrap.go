package inside

import (
	"net/netip"
	"time"
)

// Bootstrap is the inside of a *bootstrap.Bootstrap. R is *bootstrap.Rendezvous.
type Bootstrap[R any] interface {
	// Blame fails the group as Abort does, for the failure of another rank that this one has
	// noticed: the errors of all ranks name that rank. cause must not be nil; the other ranks
	// receive its text and its kind.
	Blame(rank int, cause error)
	// LocalAddr returns the address of this machine at which the peers of this rank dial
	// it, or the zero Addr if it listens on every address.
	LocalAddr() netip.Addr
	// NewRendezvous opens the rendezvous of a new group as the function of that name does, at
	// the address at which this rank's peers dial it.
	NewRendezvous() (R, error)
	// Left reports whether a rank has left the group in good order, as far as this one knows: it has closed its
	// Bootstrap. It is false for a rank outside the group.
	Left(rank int) bool
	// AskDead has Close ask dead too whether a rank is known to have failed, or to give no sign of life. dead
	// knows by other means than this group, such as another group of the same processes. Close does not wait
	// until such a rank has read the news. dead must not block.
	AskDead(dead func(rank int) bool)
	// Lossy returns the peer whose host has acknowledged nothing for longest, while this host sends again what it
	// sent there, and since when. The time is zero if there is none, or nobody looks since there is no heartbeat.
	Lossy() (peer int, since time.Time)
}

// Rendezvous is the inside of a *bootstrap.Rendezvous.
type Rendezvous interface {
	// Over returns a channel that is closed when all ranks of the group that meets now, or met last, are
	// connected to each other, or will not be.
	Over() <-chan struct{}
	// Ended tells the ranks that are not all connected yet that a rank's process has ended, and
	// how ("was killed"). The process that started it knows so even if the rank never came here.
	// They fail with an ErrRemote whose peer it is. The rendezvous is not concerned with a rank
	// any more once all are connected.
	Ended(rank int, how string)
	// Stopped tells the ranks that came that a rank's process has been stopped by a signal since a
	// time. The process that started it can see so even if the rank never came here. They fail with
	// an ErrRemote whose peer it is, once that is longer ago than the heartbeat time-out of one of
	// them. So Stopped is called again and again while the process is stopped. It reports whether
	// they fail.
	Stopped(rank, process int, since time.Time) bool
}
