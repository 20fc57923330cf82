package proxyservice

// #include "loop.h"
import "C"

import (
	"errors"
	"unsafe"
)

// backlogSize is how many triggers of a connection may wait for its transport, besides
// those in the transport's own queue.
const backlogSize = 1024

// backlog holds the triggers of a connection that cannot be queued without waiting, in
// order. A goroutine, which lives as long as there are any, queues them, and waits. While
// there are any, those that come later wait behind them. link.mu guards it.
type backlog struct {
	jobs  []deferred // a ring, allocated when first used
	first int
	count int
}

// deferred is a job with its payload, whose place in the proxy's ring is used again.
type deferred struct {
	job     job
	payload []byte // belongs to the place in the backlog, which uses it again
}

// errStalled means that a trigger must wait, and those behind it in the ring too.
var errStalled = errors.New("a trigger must wait")

// move does what a request asks for, or leaves it to the backlog of its connection. It
// does not wait for the peer. It allocates nothing as long as there is room in the
// transport's queue.
func (p *Proxy) move(r *run, j *job) error {
	t := p.tables.Load()
	to := t.ports[j.trigger.detail]
	l := to.link
	size := uint64(0)
	if j.trigger.kind&C.PROXY_PUT != 0 {
		size = uint64(j.trigger.c)
	}
	busy := l.waiting.Load() > 0
	switch {
	case l.mapped.Load() && busy:
		return errStalled
	case l.mapped.Load():
		// Kernels store to the peer themselves once the ring says that the host has done
		// what they asked for, so it must not wait in a backlog.
		turn := l.Turn()
		defer turn.End()
		return p.moved(t, turn, j, payloadOf(j))
	case !busy:
		if turn, ok := l.TryTurn(size); ok {
			defer turn.End()
			return p.moved(t, turn, j, payloadOf(j))
		}
	}
	if !p.postpone(r, l, j) {
		return errStalled
	}
	return nil
}

// payloadOf returns the bytes that came with a trigger, in the ring.
func payloadOf(j *job) []byte {
	if j.payload == nil {
		return nil
	}
	return unsafe.Slice((*byte)(j.payload), uint64(j.trigger.c))
}

// postpone puts a job into its connection's backlog. It reports false if that is full.
func (p *Proxy) postpone(r *run, l *link, j *job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.backlog
	if b.jobs == nil {
		b.jobs = make([]deferred, backlogSize)
	}
	if b.count == len(b.jobs) {
		return false
	}
	d := &b.jobs[(b.first+b.count)%len(b.jobs)]
	d.job, d.payload = *j, append(d.payload[:0], payloadOf(j)...)
	b.count++
	l.waiting.Add(1)
	p.waiting.Add(1)
	if b.count == 1 {
		go p.catchUp(r, l)
	}
	return true
}

// catchUp queues what is in a connection's backlog, until that is empty or the run ends.
func (p *Proxy) catchUp(r *run, l *link) {
	for more := true; more; {
		if r.over() {
			return
		}
		l.mu.Lock()
		d := &l.backlog.jobs[l.backlog.first] // nobody else changes it
		l.mu.Unlock()
		turn := l.Turn()
		err := p.moved(p.tables.Load(), turn, &d.job, d.payload)
		turn.End()
		if err != nil {
			p.quit(r, p.wrap(&d.job, err))
			return
		}
		l.mu.Lock()
		l.backlog.first = (l.backlog.first + 1) % len(l.backlog.jobs)
		l.backlog.count--
		more = l.backlog.count > 0
		l.waiting.Add(-1) // with the turn ended: the next trigger finds all queued
		p.waiting.Add(-1)
		l.mu.Unlock()
	}
}

// over reports whether the run has ended, or must.
func (r *run) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return r.quit.Load() != nil
	}
}
