package registeredmem

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// transfers waits until what a connection has queued is done: its copies would
// fault if a memory were unmapped meanwhile.
type transfers func(ctx context.Context) error

// join has memories call wait before they are unmapped or withdrawn, until leave
// is called.
func (r *Registry) join(wait transfers) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transfers[&wait] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.transfers, &wait)
	}
}

// waitForTransfers waits for all that is under way, for at most Options.Timeout.
func (r *Registry) waitForTransfers() error {
	r.mu.Lock()
	all := slices.Collect(maps.Keys(r.transfers))
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), r.options.Timeout)
	defer cancel()
	var errs []error
	for _, wait := range all {
		errs = append(errs, (*wait)(ctx))
	}
	return errors.Join(errs...)
}
