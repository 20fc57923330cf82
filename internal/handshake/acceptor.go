package handshake

import (
	"container/list"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// MaxHalfOpen is how many connections of an [Acceptor] may be in their
	// handshake at a time, if the process may have 4096 descriptors or more; else it
	// is a sixteenth of those, so that strangers leave most to the members. One more
	// closes the oldest: a member finishes in milliseconds, and tries again, so the
	// oldest is a silent stranger.
	MaxHalfOpen = 256

	// minStay is how long the oldest may take before it makes room: many members may
	// dial at the same time.
	minStay = 20 * time.Millisecond

	logEvery = time.Second // a stranger must not fill the log either

	minBackOff = 5 * time.Millisecond
	maxBackOff = 250 * time.Millisecond
)

// An Acceptor runs the handshakes of listening sockets.
type Acceptor struct {
	name    string
	log     *slog.Logger
	shake   Shake
	stopped chan struct{}
	limit   int // of connections that are half open
	wg      sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	halfOpen  list.List // of *half, oldest first
	nextLog   time.Time
	unlogged  int
	after     time.Duration // see WhenShort
	tell      func(error)   // nil at first
	short     error         // why a dialer has waited for longer than after
}

// A half is a connection in its handshake.
type half struct {
	net.Conn
	since  time.Time
	hungUp bool // the acceptor has closed it; Acceptor.mu guards it
}

func (h *half) hangUp() {
	h.hungUp = true
	h.Close()
}

// A Shake runs the handshake of a connection and returns what serves it afterwards.
//
// The connection is half open, and may be closed by the acceptor at any moment, until
// Shake returns or calls known. A Shake that tells the dialer that it is
// admitted calls known before, so that the acceptor closes no connection whose dialer believes
// itself admitted. known returns an error if the connection has been closed.
type Shake func(conn net.Conn, known func() error) (serve func() error, err error)

// NewAcceptor accepts from listeners, which it owns. For each connection it calls
// shake, on a goroutine of its own, to run the handshake. Then it calls the function
// that shake returned, which owns the connection. If either returns an error the
// connection is closed and the error logged under name, at most one in a second, with
// the number of those left out.
func NewAcceptor(name string, log *slog.Logger, shake Shake, listeners ...net.Listener) *Acceptor {
	a := &Acceptor{name: name, log: log, shake: shake, stopped: make(chan struct{}), limit: maxHalfOpen()}
	for _, ln := range listeners {
		a.Add(ln)
	}
	return a
}

// Add accepts from another listener too, which the acceptor owns. A stopped acceptor
// closes it.
func (a *Acceptor) Add(ln net.Listener) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		ln.Close()
		return
	}
	a.listeners = append(a.listeners, ln)
	a.wg.Go(func() { a.accept(ln) })
}

// WhenShort has tell called when there has been no descriptor, or no memory, for a dialer
// that waits, for the time after and without a break. It is called again if there was one
// in between. It may not wait for the acceptor.
func (a *Acceptor) WhenShort(after time.Duration, tell func(error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.after, a.tell = after, tell
}

// Short returns why dialers wait, from the time at which that is told until one is accepted,
// and else nil.
func (a *Acceptor) Short() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.short
}

// starve notes that a dialer has waited since then, for the reason err, or that none waits
// any more if it is nil.
func (a *Acceptor) starve(since time.Time, err error) {
	a.mu.Lock()
	if err != nil {
		a.evict() // a stranger, most likely, whose descriptor a member can use
	}
	tell := a.tell
	if err != nil && (a.short != nil || a.closed || tell == nil || time.Since(since) < a.after) {
		a.mu.Unlock()
		return
	}
	a.short = err
	a.mu.Unlock()
	if err != nil {
		tell(err)
	}
}

// Addr returns the address of the first listener.
func (a *Acceptor) Addr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listeners[0].Addr()
}

// accept starts the handshakes of ln. A failed Accept does not end the listener:
// descriptors may have run out, or the dialer may have gone already.
func (a *Acceptor) accept(ln net.Listener) {
	backOff, failed := minBackOff, false
	var waits time.Time // since when a dialer does, zero if none does
	for {
		conn, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			backOff, failed, waits = minBackOff, false, time.Time{}
			a.starve(waits, nil)
			a.makeRoom()
			a.start(conn)
			continue
		}
		if !failed {
			a.warn("accepting a connection failed; it is tried again and again", "at", ln.Addr(), "err", err)
		}
		failed = true
		if Shortage(err) && dialled(ln) {
			if waits.IsZero() {
				waits = time.Now()
			}
			a.starve(waits, err)
		} else {
			waits = time.Time{}
		}
		select {
		case <-a.stopped:
			return
		case <-time.After(backOff):
		}
		backOff = min(2*backOff, maxBackOff)
	}
}

// makeRoom returns when one more may be half open. It closes the oldest once that has had the time of minStay.
func (a *Acceptor) makeRoom() {
	for {
		a.mu.Lock()
		full := a.halfOpen.Len() >= a.limit && !a.closed
		if full && time.Since(a.halfOpen.Front().Value.(*half).since) >= minStay {
			a.evict()
			full = false
		}
		a.mu.Unlock()
		if !full {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// evict closes the oldest connection that is half open. The caller holds mu.
func (a *Acceptor) evict() {
	if e := a.halfOpen.Front(); e != nil {
		a.halfOpen.Remove(e).(*half).hangUp()
	}
}

// start begins the handshake of conn.
func (a *Acceptor) start(conn net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		conn.Close()
		return
	}
	h := &half{Conn: conn, since: time.Now()}
	slot := a.halfOpen.PushBack(h)
	known := func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if h.hungUp {
			return errors.New("the connection was closed in its handshake")
		}
		a.halfOpen.Remove(slot)
		return nil
	}
	a.wg.Go(func() {
		serve, err := a.shake(conn, known)
		if gone := known(); err == nil {
			err = gone
		}
		if err == nil {
			err = serve()
		}
		if err != nil {
			conn.Close()
			a.warn("refused a connection", "from", conn.RemoteAddr(), "at", conn.LocalAddr(), "err", err)
		}
	})
}

// warn logs, unless it did so within the last second or the acceptor is stopped.
func (a *Acceptor) warn(what string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.closed || now.Before(a.nextLog) {
		a.unlogged++
		return
	}
	a.log.Warn(a.name+": "+what, append(args, "unlogged", a.unlogged)...)
	a.unlogged, a.nextLog = 0, now.Add(logEvery)
}

// maxHalfOpen returns MaxHalfOpen, or less if this process may have few descriptors.
func maxHalfOpen() int {
	return max(8, min(DescriptorLimit()/16, MaxHalfOpen))
}

// Stop closes the listeners and ends the handshakes under way. It is safe to call
// twice.
func (a *Acceptor) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	close(a.stopped)
	for _, ln := range a.listeners {
		ln.Close()
	}
	for e := a.halfOpen.Front(); e != nil; e = e.Next() {
		e.Value.(*half).hangUp()
	}
}

// Wait returns when all that was accepted has been served. It is called after
// Stop.
func (a *Acceptor) Wait() { a.wg.Wait() }
