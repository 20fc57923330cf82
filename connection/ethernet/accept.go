package ethernet

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
)

// arrival is a connection of which some sockets have arrived.
type arrival struct {
	claim   claim // of its first socket
	sockets []net.Conn
	missing int
	expiry  *time.Timer
}

// drop closes the sockets of an arrival. The dialer, for which the last one may be connected already,
// is told that this rank has closed the connection.
func (a *arrival) drop() {
	a.expiry.Stop()
	if control := a.sockets[0]; control != nil {
		sayBye(control, message.Parting) // a dialer that is gone does not need it
	}
	for _, nc := range a.sockets {
		if nc != nil {
			nc.Close()
		}
	}
}

// maxUnclaimed is how many connections of an endpoint may wait for its Connect, and
// how many of a transport may wait for sockets. Only members get there, and need
// far fewer.
const maxUnclaimed = 1024

// shake has the dialer of raw prove that it belongs to the group.
func (t *Transport) shake(raw net.Conn, known func() error) (serve func() error, err error) {
	var c claim
	nc, err := t.member.Server(raw, func(_ net.Conn, b []byte) (err error) {
		if c, err = decodeClaim(b); err != nil {
			return err
		}
		return errors.Join(known(), t.admit(c))
	})
	if err != nil {
		return nil, err
	}
	return func() error { return t.serve(c, nc) }, nil
}

// serve adds a socket to its connection. The last one starts the connection,
// whether or not this rank has called Connect yet.
func (t *Transport) serve(c claim, nc net.Conn) error {
	a, err := t.arrive(c, nc)
	if a == nil || err != nil {
		return err
	}
	made, err := newConn(t, int(c.from), a.sockets)
	t.rank.Mu.Lock()
	e := t.endpoints[c.acceptor]
	t.rank.Mu.Unlock()
	delivered := e.deliver(delivery{peer: c.dialer, connection: c.connection, conn: made, err: err})
	if err != nil {
		return err
	}
	if !delivered {
		return errors.Join(fmt.Errorf("%d connections wait already for this rank's Connect, or the endpoint is closed", maxUnclaimed), made.Close())
	}
	return nil
}

// admit returns an error if a member's claim does not fit this rank.
func (t *Transport) admit(c claim) error {
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	err := t.fits(c)
	if err == nil {
		t.endpoints[c.acceptor].dialledAgain(c.dialer)
	}
	return err
}

// fits is admit for callers that hold mu.
func (t *Transport) fits(c claim) error {
	switch a := t.arriving[c.connection]; {
	case t.rank.Closed:
		return errors.New("the transport is closing")
	case c.to != uint32(t.rank.Registry.Rank()) || t.endpoints[c.acceptor] == nil:
		return fmt.Errorf("rank %d dialled an endpoint of rank %d that does not exist", c.from, c.to)
	case a == nil && len(t.arriving) >= maxUnclaimed:
		return fmt.Errorf("%d connections wait for their sockets", len(t.arriving))
	case a != nil && (a.claim.from != c.from || a.claim.dialer != c.dialer || a.claim.acceptor != c.acceptor || a.claim.sockets != c.sockets):
		return fmt.Errorf("a socket of rank %d does not fit its connection", c.from)
	case a != nil && a.sockets[c.socket] != nil:
		return fmt.Errorf("socket %d of a connection of rank %d came twice", c.socket, c.from)
	}
	return nil
}

// arrive adds a socket to its arrival, which it returns once it is complete.
func (t *Transport) arrive(c claim, nc net.Conn) (*arrival, error) {
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	if err := t.fits(c); err != nil { // it may have changed while the answer was sent
		return nil, err
	}
	a := t.arriving[c.connection]
	if a == nil {
		a = &arrival{claim: c, sockets: make([]net.Conn, c.sockets), missing: int(c.sockets)}
		a.expiry = time.AfterFunc(max(t.patience, t.rank.Timeout), func() { // a dialer may get no CPU for a while
			t.rank.Mu.Lock()
			defer t.rank.Mu.Unlock()
			if t.arriving[c.connection] == a {
				delete(t.arriving, c.connection)
				a.drop()
				t.rank.Log.Warn("ethernet: sockets of a connection did not come", "peer", c.from, "missing", a.missing)
			}
		})
		t.arriving[c.connection] = a
	}
	a.sockets[c.socket] = nc
	if a.missing--; a.missing > 0 {
		return nil, nil
	}
	a.expiry.Stop()
	delete(t.arriving, c.connection)
	return a, nil
}
