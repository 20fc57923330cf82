package registeredmem

import (
	"context"
	"errors"
	"maps"
	"slices"
)

func (r registryInside) Join(wait func(context.Context) error) (leave func()) {
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
