package proxyservice

// #include "loop.h"
import "C"

import (
	"bytes"
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

// postpone has the connection do a job, which cannot be queued without waiting, in its place in the
// connection's order: before what others queue later. The ring uses the job and its payload again.
func (p *Proxy) postpone(r *run, l *link, j *job) {
	l.waiting.Add(1)
	p.waiting.Add(1)
	late, payload := *j, bytes.Clone(payloadOf(j))
	l.Connection.Internal().Later(func(turn turn) {
		defer runtime.KeepAlive(p) // the counts lie in C, and go with it
		if !r.over() {
			if err := p.moved(p.tables.Load(), turn, &late, payload); err != nil {
				p.quit(r, p.wrap(&late, err))
			} else {
				l.mu.Lock()
				l.took()
				l.mu.Unlock()
			}
		}
		l.waiting.Add(-1)
		p.waiting.Add(-1)
	})
}

// over reports whether the run has ended, or must.
func (r *run) over() bool {
	return r.ended() || r.quit.Load() != nil
}
