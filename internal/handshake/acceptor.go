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
	// handshake at a time. One more closes the oldest: a member finishes in
	// milliseconds, and tries again, so the oldest is a silent stranger.
	MaxHalfOpen = 256

	logEvery = time.Second // a stranger must not fill the log either

	minBackOff = 5 * time.Millisecond
	maxBackOff = time.Second
)

// An Acceptor runs the handshakes of listening sockets.
type Acceptor struct {
	name    string
	log     *slog.Logger
	shake   func(net.Conn) (func() error, error)
	stopped chan struct{}
	wg      sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	halfOpen  list.List // of net.Conn, oldest first
	nextLog   time.Time
	unlogged  int
}

// NewAcceptor accepts from listeners, which it owns. For each connection it calls
// shake, on a goroutine of its own, to run the handshake; the connection counts as
// half open until shake returns. Then it calls the function that shake returned,
// which owns the connection. If either returns an error the connection is closed
// and the error logged under name, at most one in a second, with the number of
// those left out.
func NewAcceptor(name string, log *slog.Logger, shake func(net.Conn) (serve func() error, err error), listeners ...net.Listener) *Acceptor {
	a := &Acceptor{name: name, log: log, shake: shake, stopped: make(chan struct{})}
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

// Addr returns the address of the first listener.
func (a *Acceptor) Addr() net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listeners[0].Addr()
}

// accept starts the handshakes of ln. A failed Accept does not end the listener:
// descriptors may have run out, or the dialer may have gone already.
func (a *Acceptor) accept(ln net.Listener) {
	backOff := minBackOff
	for {
		conn, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err == nil:
			backOff = minBackOff
			a.start(conn)
			continue
		}
		a.warn("accepting a connection failed", "at", ln.Addr(), "err", err)
		select {
		case <-a.stopped:
			return
		case <-time.After(backOff):
		}
		backOff = min(2*backOff, maxBackOff)
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
	if a.halfOpen.Len() >= MaxHalfOpen {
		a.halfOpen.Remove(a.halfOpen.Front()).(net.Conn).Close()
	}
	slot := a.halfOpen.PushBack(conn)
	a.wg.Go(func() {
		serve, err := a.shake(conn)
		a.mu.Lock()
		a.halfOpen.Remove(slot)
		a.mu.Unlock()
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
		e.Value.(net.Conn).Close()
	}
}

// Wait returns when all that was accepted has been served. It is called after
// Stop.
func (a *Acceptor) Wait() { a.wg.Wait() }
