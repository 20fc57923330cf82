package proxyservice

// #include "loop.h"
import "C"

import (
	"errors"
	"runtime"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// backlogSize is how many triggers may wait for a connection, besides those in the transport's own queue.
// Kernels push no more.
const backlogSize = layout.PortWaiting

// errStalled means that a trigger must wait, and those behind it in the ring too.
var errStalled = errors.New("a trigger must wait")

// move does what a request asks for, or leaves it to its connection. It does not wait for the peer. It
// allocates nothing as long as there is room in the transport's queue.
func (p *Proxy) move(r *run, j *job) error {
	t := p.tables.Load()
	l := t.ports[j.trigger.detail].link
	if turn, ok := l.tryTurn(j); ok {
		defer turn.End()
		err := p.moved(t, turn, j, payloadOf(j))
		if err == nil {
			l.took()
		}
		return err
	}
	if l.waiting.Load() == backlogSize || r.turns != nil && !l.limited() { // the turn's holder goes on in turns, as its goroutine would not
		return errStalled
	}
	p.postpone(r, l, j)
	return nil
}

// tryTurn takes a turn in which what a job asks for does not wait, if there is one.
func (l *link) tryTurn(j *job) (turn, bool) {
	kind, n := kindOf(j), uint64(j.trigger.c)
	if kind == connection.Update || kind == connection.Add || kind == connection.Exchange {
		n = 0
	}
	return l.Connection.Internal().TryTurn(kind, n)
}

// payloadOf returns the bytes that came with a trigger, in the ring.
func payloadOf(j *job) []byte {
	if j.payload == nil {
		return nil
	}
	return unsafe.Slice((*byte)(j.payload), uint64(j.trigger.c))
}

// postponed is a job that waits for its connection, with its payload, as the ring uses the places of both again.
type postponed struct {
	p       *Proxy
	r       *run
	l       *link
	job     job
	payload []byte
	do      func(turn) // queue
}

// postpone has the connection do a job, which cannot be queued without waiting, in its place in the
// connection's order: before what others queue later.
func (p *Proxy) postpone(r *run, l *link, j *job) {
	l.waiting.Add(1)
	p.waiting.Add(1)
	w := l.spare()
	w.p, w.r, w.job, w.payload = p, r, *j, append(w.payload[:0], payloadOf(j)...)
	l.Connection.Internal().Later(w.do)
}

// spare returns one that is not in use any more, or a new one.
func (l *link) spare() *postponed {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.spares); n > 0 {
		w := l.spares[n-1]
		l.spares = l.spares[:n-1]
		return w
	}
	w := &postponed{l: l}
	w.do = w.queue
	return w
}

// queue does the job in its turn, unless the run has ended.
func (w *postponed) queue(turn turn) {
	p, l := w.p, w.l
	defer runtime.KeepAlive(p) // the counts lie in C, and go with it
	var err error
	queue := !w.r.over()
	if queue {
		if err = p.moved(p.tables.Load(), turn, &w.job, w.payload); err != nil {
			p.quit(w.r, p.wrap(&w.job, err))
		}
	}
	l.mu.Lock()
	if queue && err == nil {
		l.took()
	}
	l.spares = append(l.spares, w)
	l.mu.Unlock()
	l.waiting.Add(-1)
	p.waiting.Add(-1)
}

// over reports whether the run has ended, or must.
func (r *run) over() bool {
	return r.ended() || r.quit.Load() != nil
}
