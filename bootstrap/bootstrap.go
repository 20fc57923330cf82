package bootstrap

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// A Bootstrap is one rank's place in a group. All its methods may be called
// from many goroutines at once.
type Bootstrap struct {
	rank, size int
	id         UniqueID
	options    Options // of Connect
	log        *slog.Logger
	member     *handshake.Member
	acc        *handshake.Acceptor
	hosted     *Rendezvous // on a rank 0 that opened it, or nil
	over       Carrier     // it carries the messages, or is nil
	membership membership  // the Carrier's, or nil
	inbox      *mailbox
	calls      collectiveCalls

	life   context.Context // ends when Close begins
	kill   context.CancelFunc
	wg     sync.WaitGroup // connections and dials
	failed chan struct{}  // closed when the group has failed
	once   sync.Once      // for Close

	mu        sync.Mutex // guards what follows, and the peers
	peers     []*peer    // by rank; this rank's own is never connected
	failure   *failure   // the first, or nil
	closing   bool
	dead      []func(rank int) bool // see AskDead of package inside
	linked    bool                  // all ranks are connected: Connect has succeeded
	early     *watch.Fact           // the first connection that broke before that, or nil
	allLeave  bool                  // all ranks close the group, and nobody turns to another
	verifying bool                  // verify is about to be called
}

// A peer holds what this rank knows of another. Bootstrap.mu guards it.
type peer struct {
	rank int
	addr string
	// conns are open, or admitted and about to be.
	conns map[*conn]bool
	// out is the connection on which this rank sends. It stays the same while it is open, so
	// that messages keep their order.
	out *conn
	// left means that the rank has left in good order. gone is closed when, in
	// addition, everything it sent has been read.
	left bool
	gone chan struct{}
	// lost means that the rank cannot be reached, for a reason not known yet.
	lost bool
	// quiet means that this rank has asked for signs of life and heard none for a while.
	quiet bool
	// heard means that the rank has read this one's goodbye and stays itself.
	heard bool

	dialing bool
	dialed  chan struct{} // closed when out is set or the dial has failed
	dialErr error
}

func newBootstrap(o Options, member *handshake.Member, addrs []string, ln net.Listener, hosted *Rendezvous) *Bootstrap {
	b := &Bootstrap{
		rank: o.Rank, size: o.Size, id: o.ID, options: o,
		log:    o.Logger.With("rank", o.Rank),
		member: member,
		hosted: hosted,
		inbox:  newMailbox(),
		calls:  newCollectiveCalls(),
		failed: make(chan struct{}),
		peers:  make([]*peer, o.Size),
	}
	b.life, b.kill = context.WithCancel(context.Background())
	for i := range b.peers {
		b.peers[i] = &peer{rank: i, addr: addrs[i], conns: map[*conn]bool{}, gone: make(chan struct{})}
	}
	b.acc = handshake.NewAcceptor("bootstrap", b.log, b.shake)
	if ln != nil {
		b.acc.Add(ln)
	}
	return b
}

// Rank returns this rank's number.
func (b *Bootstrap) Rank() int { return b.rank }

// Size returns how many ranks the group was made of.
func (b *Bootstrap) Size() int { return b.size }

// Options returns the options of [Connect] without Rank, Size, ID and Timeout. With them this
// process can connect to another group of the same machines.
func (b *Bootstrap) Options() Options {
	o := b.options
	o.Rank, o.Size, o.ID, o.Timeout = 0, 0, UniqueID{}, 0
	return o
}

// Group returns the group's number, which is not a secret.
func (b *Bootstrap) Group() [groupSize]byte {
	if b.membership != nil {
		return b.membership.Group()
	}
	return b.id.group
}

// Key returns a secret for a purpose that the ranks of the group share and nobody
// else has. Each layer that proves membership uses its own, and none has the
// group's.
func (b *Bootstrap) Key(purpose string) [secretSize]byte {
	if b.membership != nil {
		return b.membership.Key(purpose)
	}
	secret := b.id.secret()
	return handshake.Derive(secret[:], "key "+purpose)
}

// Close leaves the group in good order and releases everything. What this rank has
// sent still arrives. Its peers continue, but a Send to it returns ErrRemote, and
// so does a Recv from it once its messages have been received. Calls of this rank
// that are blocked return ErrAborted.
//
// Close waits until the peers have read everything, at most two seconds, or six
// where the network loses packets. It is safe to call twice, and does nothing on
// nil. To its peers, a process that ends without Close has failed.
func (b *Bootstrap) Close() error {
	if b == nil {
		return nil
	}
	b.once.Do(b.close)
	return nil
}

func (b *Bootstrap) close() {
	b.mu.Lock()
	asked := b.dead
	b.mu.Unlock()
	dead := make([]bool, b.size) // asked ahead of the lock: they may look at other groups
	for rank := range dead {
		dead[rank] = slices.ContainsFunc(asked, func(ask func(rank int) bool) bool { return ask(rank) })
	}
	together := uint64(0) // 1 if all ranks of a Carrier's group close it now
	if t, ok := b.over.(interface{ Together() bool }); ok && t.Together() {
		together = 1
	}
	b.mu.Lock()
	b.closing = true
	b.kill()
	for _, p := range b.peers {
		for c := range p.conns {
			switch f := b.failure; {
			case dead[p.rank], f != nil && f.Peer() == p.rank, f == nil && !b.linked:
				c.nc.SetDeadline(time.Now().Add(newsPatience)) // it may never read, as it has failed, or there is nothing to read
			case f == nil:
				c.leave(time.Now())
			default:
				c.leave(f.sent)
			}
			if c.up { // otherwise establish says goodbye
				c.enqueue(frame{kind: frameGoodbye, tag: together})
				c.end()
			}
		}
	}
	b.mu.Unlock()

	if b.over != nil && together == 0 {
		b.tellOthers()
	}
	b.acc.Stop()
	b.wg.Wait()
	if b.over == nil {
		b.farewell()
	}
	b.acc.Wait()
	if b.hosted != nil {
		b.hosted.Close()
	}
}

// errClosed is the error of a call on a closed Bootstrap.
func (b *Bootstrap) errClosed(op string, peer int) error {
	return mscclgo.Errorf(mscclgo.ErrAborted, op, "this rank has closed its bootstrap").At(b.rank, peer)
}
