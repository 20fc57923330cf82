package explore

// #include "turns.h"
import "C"

// Proxy returns the party of a proxy that the caller, whose party has the turn, is about to start,
// or nil if the caller has no party. [Party.Ended] is called once for it, and [Explorer.End] waits for
// that.
func (p *Party) Proxy() *Party {
	if p == nil {
		return nil
	}
	p.x.working.Add(1)
	c := C.explore_join_proxy(C.uint32_t(p.rank), C.uint32_t(p.numbers.proxies))
	p.numbers.proxies++
	return &Party{x: p.x, c: c, rank: p.rank, numbers: p.numbers}
}

// Serves reports whether the proxy takes part: until the ranks and all that they have queued have
// ended, or the run is over. Its goroutine calls it, for which the first call waits for a turn.
func (p *Party) Serves() bool {
	if !p.entered {
		p.entered = true
		p.x.mu.Lock()
		p.x.hosts[goroutine()] = p
		p.x.mu.Unlock()
		p.Await()
	}
	return !p.x.Over()
}

// Look gives the turn away until somebody has written, as a proxy does that has found nothing. If
// all others wait too, that is a deadlock, or the end. worked is whether it has done something
// since it called Look last.
func (p *Party) Look(what string, worked bool) {
	if worked {
		p.Event()
	}
	C.explore_waits(p.c, place(what), 1)
}

// Looking calls look, in which a proxy asks for what Look waits for: so Poll does not wait.
func (p *Party) Looking(look func()) {
	if p != nil {
		p.looks = true
		defer func() { p.looks = false }()
	}
	look()
}

// Ended is called by the proxy's goroutine, which takes part no more.
func (p *Party) Ended() {
	if p == nil {
		return
	}
	defer p.x.working.Done()
	p.x.mu.Lock()
	delete(p.x.hosts, goroutine())
	p.x.mu.Unlock()
	C.explore_rest(p.c)
}
