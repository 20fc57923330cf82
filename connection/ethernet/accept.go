package ethernet

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// maxHalfOpen is how many sockets may be in their handshake at a time. One more
// closes the oldest: a rank of the group finishes in milliseconds (and tries
// again), so it is a silent stranger who has waited longest.
const maxHalfOpen = 256

// An acceptor runs the handshakes of a listening socket.
type acceptor struct {
	ln  net.Listener
	log *slog.Logger
	// shake runs a handshake and gives what is to be done with the connection then.
	shake func(net.Conn) (serve func() error, err error)

	wg sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	halfOpen *list.List // of net.Conn, oldest first
	nextLog  time.Time
	unlogged int
}

func newAcceptor(ln net.Listener, log *slog.Logger, shake func(net.Conn) (func() error, error)) *acceptor {
	a := &acceptor{ln: ln, log: log, shake: shake, halfOpen: list.New()}
	a.wg.Add(1)
	go a.run()
	return a
}

func (a *acceptor) run() {
	defer a.wg.Done()
	for {
		nc, err := a.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, or the dialer has gone already: neither ends the
			// listener.
			a.log.Warn("ethernet: accepting a connection failed", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		a.start(nc)
	}
}

// start begins the handshake of nc.
func (a *acceptor) start(nc net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		nc.Close()
		return
	}
	if a.halfOpen.Len() >= maxHalfOpen {
		oldest := a.halfOpen.Front()
		oldest.Value.(net.Conn).Close()
		a.halfOpen.Remove(oldest)
	}
	slot := a.halfOpen.PushBack(nc)
	a.wg.Go(func() {
		serve, err := a.shake(nc)
		a.mu.Lock()
		a.halfOpen.Remove(slot)
		a.mu.Unlock()
		if err == nil {
			err = serve()
		}
		if err != nil {
			nc.Close()
			a.refused(nc, err)
		}
	})
}

// refused logs a refused socket, at most one a second: a stranger must not fill
// the log either.
func (a *acceptor) refused(nc net.Conn, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.closed || now.Before(a.nextLog) {
		a.unlogged++
		return
	}
	a.log.Warn("ethernet: refused a connection", "from", nc.RemoteAddr(), "at", nc.LocalAddr(), "err", err, "unlogged", a.unlogged)
	a.unlogged, a.nextLog = 0, now.Add(time.Second)
}

// stop accepts no more and ends the handshakes under way.
func (a *acceptor) stop() {
	a.ln.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for e := a.halfOpen.Front(); e != nil; e = e.Next() {
		e.Value.(net.Conn).Close()
	}
}

// wait returns when all handshakes have ended.
func (a *acceptor) wait() { a.wg.Wait() }

// arrival is a connection of which some sockets are here.
type arrival struct {
	claim   claim // of its first socket
	sockets []net.Conn
	missing int
	expiry  *time.Timer
}

// drop gives up on an arrival.
func (a *arrival) drop() {
	a.expiry.Stop()
	for _, nc := range a.sockets {
		if nc != nil {
			nc.Close()
		}
	}
}

// maxUnclaimed is how many connections of an endpoint may wait for its Connect, and
// how many of a transport may wait for sockets, in multiples of the group's needs:
// members alone get there.
const maxUnclaimed = 1024

// shake has who dialled prove membership.
func (t *Transport) shake(raw net.Conn) (serve func() error, err error) {
	deadline := time.Now().Add(t.patience)
	raw.SetDeadline(deadline)
	ctx, cancel := context.WithDeadline(t.ctx, deadline)
	defer cancel()
	nc, p, err := t.encrypt(ctx, raw, tls.Server)
	if err != nil {
		return nil, err
	}
	c, err := acceptHandshake(nc, p, t.reg.Group(), t.admit)
	if err != nil {
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	return func() error { return t.serve(c, nc) }, nil
}

// serve adds a socket to its connection. The last one makes the connection work,
// whether or not this rank has asked for it yet.
func (t *Transport) serve(c claim, nc net.Conn) error {
	a, err := t.arrive(c, nc)
	if a == nil || err != nil {
		return err
	}
	made, err := newConn(t, int(c.from), a.sockets)
	if err != nil {
		return err
	}
	t.mu.Lock()
	e := t.endpoints[c.acceptor]
	t.mu.Unlock()
	if !e.deliver(delivery{peer: c.dialer, connection: c.connection, conn: made}) {
		return errors.Join(fmt.Errorf("%d connections wait already for this rank's Connect", maxUnclaimed), made.Close())
	}
	return nil
}

// admit says whether a member's claim fits this rank.
func (t *Transport) admit(c claim) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch a := t.arriving[c.connection]; {
	case t.closed:
		return errors.New("the transport is closing")
	case c.to != uint32(t.reg.Rank()) || t.endpoints[c.acceptor] == nil:
		return fmt.Errorf("rank %d dialled an endpoint of rank %d that is not here", c.from, c.to)
	case a == nil && len(t.arriving) >= maxUnclaimed:
		return fmt.Errorf("%d connections wait for their sockets", len(t.arriving))
	case a != nil && (a.claim.from != c.from || a.claim.dialer != c.dialer || a.claim.acceptor != c.acceptor || a.claim.sockets != c.sockets):
		return fmt.Errorf("a socket of rank %d does not fit its connection", c.from)
	case a != nil && a.sockets[c.socket] != nil:
		return fmt.Errorf("socket %d of a connection of rank %d came twice", c.socket, c.from)
	}
	return nil
}

// arrive notes a socket, and gives the arrival once it is complete.
func (t *Transport) arrive(c claim, nc net.Conn) (*arrival, error) {
	if err := t.admit(c); err != nil { // it may have changed while the answer was sent
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.arriving[c.connection]
	if a == nil {
		a = &arrival{claim: c, sockets: make([]net.Conn, c.sockets), missing: int(c.sockets)}
		a.expiry = time.AfterFunc(t.patience, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.arriving[c.connection] == a {
				delete(t.arriving, c.connection)
				a.drop()
				t.log.Warn("ethernet: sockets of a connection did not come", "peer", c.from, "missing", a.missing)
			}
		})
		t.arriving[c.connection] = a
	}
	if t.closed || a.sockets[c.socket] != nil {
		return nil, fmt.Errorf("socket %d of rank %d came twice, or as the transport closed", c.socket, c.from)
	}
	a.sockets[c.socket] = nc
	if a.missing--; a.missing > 0 {
		return nil, nil
	}
	a.expiry.Stop()
	delete(t.arriving, c.connection)
	return a, nil
}
