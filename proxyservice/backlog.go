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

// backlogSize is how many triggers of a connection may wait for its transport, besides
// those in the transport's own queue. Kernels push no more.
const backlogSize = layout.PortWaiting

// backlog holds the triggers of a connection that cannot be queued without waiting, in
// order. A goroutine, which lives as long as there are any, queues them, and waits. While
// there are any, those that come later wait behind them. link.mu guards it.
type backlog struct {
	jobs  []deferred // a ring, allocated when first used
	first int
	count int
	over  bool // nobody empties it any more
}

// deferred is a job with its payload, whose place in the proxy's ring is used again, and
// its place in the connection's order, before what others queue on it later.
type deferred struct {
	job     job
	payload []byte // belongs to the place in the backlog, which uses it again
	place   connection.Place
}

// errStalled means that a trigger must wait, and those behind it in the ring too.
var errStalled = errors.New("a trigger must wait")

// move does what a request asks for, or leaves it to the backlog of its connection. It
// does not wait for the peer. It allocates nothing as long as there is room in the
// transport's queue.
func (p *Proxy) move(r *run, j *job) error {
	t := p.tables.Load()
	l := t.ports[j.trigger.detail].link
	if l.waiting.Load() == 0 {
		if turn, ok := l.tryTurn(j); ok {
			defer turn.End()
			if err := p.moved(t, turn, j, payloadOf(j)); err != nil {
				return err
			}
			l.took()
			return nil
		}
	}
	if !p.postpone(r, l, j) {
		return errStalled
	}
	return nil
}

// tryTurn takes a turn in which what a job asks for does not wait, if there is one.
func (l *link) tryTurn(j *job) (connection.Turn, bool) {
	switch kind := j.trigger.kind; {
	case kind&C.PROXY_EXCHANGE == C.PROXY_EXCHANGE:
		return l.TryTurn(connection.Exchanges, 0)
	case kind&C.PROXY_GET != 0:
		return l.TryTurn(connection.Reads, uint64(j.trigger.c))
	case kind&(C.PROXY_PUT|C.PROXY_STORE) != 0 && kind&C.PROXY_ATOMIC == 0:
		return l.TryTurn(connection.Writes, uint64(j.trigger.c))
	}
	return l.TryTurn(connection.Writes, 0)
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
	if b.over {
		return true // the run ends
	}
	if r.turns != nil && !l.limited() {
		return false // the holder of the connection's turn goes on in turns, as its goroutine would not
	}
	if b.jobs == nil {
		b.jobs = make([]deferred, backlogSize)
	}
	if b.count == len(b.jobs) {
		return false
	}
	d := &b.jobs[(b.first+b.count)%len(b.jobs)]
	d.job, d.payload, d.place = *j, append(d.payload[:0], payloadOf(j)...), l.Place()
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
	defer runtime.KeepAlive(p) // the counts lie in C, and go with it
	for more := true; more; {
		l.mu.Lock()
		d := &l.backlog.jobs[l.backlog.first] // nobody else changes it
		l.mu.Unlock()
		turn := d.place.Turn()
		if r.over() {
			turn.End()
			p.abandon(l)
			return
		}
		err := p.moved(p.tables.Load(), turn, &d.job, d.payload)
		turn.End()
		if err != nil {
			p.quit(r, p.wrap(&d.job, err))
			p.abandon(l)
			return
		}
		l.mu.Lock()
		l.took()
		l.backlog.first = (l.backlog.first + 1) % len(l.backlog.jobs)
		l.backlog.count--
		more = l.backlog.count > 0
		l.waiting.Add(-1) // with the turn ended: the next trigger finds all queued
		p.waiting.Add(-1)
		l.mu.Unlock()
	}
}

// abandon gives up a backlog, whose first job has had its turn.
func (p *Proxy) abandon(l *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.backlog
	for i := 1; i < b.count; i++ {
		b.jobs[(b.first+i)%len(b.jobs)].place.Leave()
	}
	p.waiting.Add(int64(-b.count))
	b.count, b.over = 0, true
}

// over reports whether the run has ended, or must.
func (r *run) over() bool {
	return r.ended() || r.quit.Load() != nil
}
