package inside

import "sync"

// Process has the registries of one process that import from each other without a socket: in a
// group of hundreds of ranks that is a handshake less for each pair and memory. R is
// *registeredmem.Registry. The zero value is empty, and nil stays empty.
type Process[R any] struct {
	mu         sync.RWMutex
	registries map[uint64]R // by instance, while they serve
}

// Add adds the registry of an instance.
func (p *Process[R]) Add(instance uint64, r R) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.registries == nil {
		p.registries = map[uint64]R{}
	}
	p.registries[instance] = r
}

// Remove ends what Add began.
func (p *Process[R]) Remove(instance uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.registries, instance)
}

// Find returns the registry of an instance.
func (p *Process[R]) Find(instance uint64) (r R, ok bool) {
	if p == nil {
		return r, false
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok = p.registries[instance]
	return r, ok
}
