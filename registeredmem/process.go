package registeredmem

import (
	"sync"

	"github.com/mscclgo/mscclgo/internal/fdpass"
)

// Process are registries of one process, which import from each other without a socket: in a group
// of hundreds of ranks that is a handshake less for each pair and memory. The zero value is
// empty.
type Process struct {
	mu         sync.RWMutex
	registries map[uint64]*Registry // by instance, while they serve
}

func (p *Process) add(r *Registry) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registries == nil {
		p.registries = map[uint64]*Registry{}
	}
	p.registries[r.instance] = r
}

func (p *Process) remove(r *Registry) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.registries, r.instance)
}

// call asks the registry of the request for a memory, as fdpass.Call does. ok is false if it is
// not among these, or not of r's group.
func (p *Process) call(r *Registry, q request) (a fdpass.Answer, ok bool) {
	if p == nil {
		return fdpass.Answer{}, false
	}
	p.mu.RLock()
	peer := p.registries[q.instance]
	p.mu.RUnlock()
	if peer == nil || peer.options.Group != r.options.Group || peer.options.Secret != r.options.Secret {
		return fdpass.Answer{}, false
	}
	return peer.serve(q.encode(), true), true
}
