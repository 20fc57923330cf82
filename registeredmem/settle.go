package registeredmem

import (
	"context"
	"errors"
)

// Settler is something whose copies would fault if a memory were unmapped under them:
// a connection that has copy engines work on the memories of a registry.
type Settler interface {
	// Settle waits until the copies that were begun before it have ended. Those that
	// begin later find the memory closed that it was called for.
	Settle(ctx context.Context) error
}

// Join has memories wait for the copies of s before they close, until leave is
// called.
func (r *Registry) Join(s Settler) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settlers[s] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.settlers, s)
	}
}

// settle waits for all copies that are under way, for at most Config.Timeout.
func (r *Registry) settle() error {
	r.mu.Lock()
	all := make([]Settler, 0, len(r.settlers))
	for s := range r.settlers {
		all = append(all, s)
	}
	r.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Timeout)
	defer cancel()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Settle(ctx))
	}
	return errors.Join(errs...)
}
