package bootstrap

import (
	"container/list"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// maxHalfOpen is how many connections may be in their handshake at a time. One
// more closes the oldest: a rank of the group finishes in milliseconds (and
// tries again), so it is a silent stranger who has waited longest.
const maxHalfOpen = 256

// An acceptor runs the handshakes of a listening socket. What happens to a
// connection is the business of its shake function.
type acceptor struct {
	ln  net.Listener
	log *slog.Logger
	// shake runs a handshake and returns what is to be done with the
	// connection then. That function owns the connection.
	shake func(net.Conn) (serve func(), err error)

	wg sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	halfOpen  *list.List // of net.Conn, oldest first
	nextLog   time.Time
	unlogged  int
	closeOnce sync.Once
}

func newAcceptor(ln net.Listener, log *slog.Logger, shake func(net.Conn) (func(), error)) *acceptor {
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
			// Out of descriptors, or the dialer has gone already: neither ends
			// the listener.
			a.log.Warn("bootstrap: accepting a connection failed", "err", err)
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
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		serve, err := a.shake(nc)
		a.mu.Lock()
		a.halfOpen.Remove(slot)
		a.mu.Unlock()
		if err != nil {
			nc.Close()
			a.refused(nc, err)
			return
		}
		serve()
	}()
}

// refused logs a refused connection, at most one a second: a stranger must not
// fill the log either.
func (a *acceptor) refused(nc net.Conn, err error) {
	a.mu.Lock()
	now := time.Now()
	if a.closed || now.Before(a.nextLog) {
		a.unlogged++
		a.mu.Unlock()
		return
	}
	unlogged := a.unlogged
	a.unlogged = 0
	a.nextLog = now.Add(time.Second)
	a.mu.Unlock()
	a.log.Warn("bootstrap: refused a connection", "from", nc.RemoteAddr(), "at", nc.LocalAddr(),
		"err", err, "unlogged", unlogged)
}

// stop accepts no more and ends the handshakes under way.
func (a *acceptor) stop() {
	a.closeOnce.Do(func() {
		a.ln.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.closed = true
		for e := a.halfOpen.Front(); e != nil; e = e.Next() {
			e.Value.(net.Conn).Close()
		}
	})
}

// wait returns when all connections have been served.
func (a *acceptor) wait() { a.wg.Wait() }
