package collective

import (
	"errors"
	"maps"
	"slices"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// serves reports whether a group is as that of the path, in which the same kernels do the same: this rank
// has the same number, and each host the same ranks.
func (h *hostPath) serves(comm *communicator.Communicator) bool {
	return h.comm.Rank() == comm.Rank() && slices.EqualFunc(h.comm.Hosts(), comm.Hosts(), slices.Equal)
}

// keepPaths keeps the paths that serve a group as well, and closes the others. No rank uses them any more.
func (r *Runner) keepPaths(comm *communicator.Communicator) error {
	h := &r.before
	maps.Copy(h.paths, r.hostPaths)
	clear(r.hostPaths)
	for key, path := range h.paths {
		if path.serves(comm) {
			continue
		}
		if err := path.discard(); err != nil {
			return err
		}
		delete(h.paths, key)
	}
	return nil
}

// takeRest has the path have all that the one before has still, and closes its service.
func (h *hostPath) takeRest() error {
	err := h.closeService()
	for i, b := range h.before.buffers {
		switch {
		case i >= len(h.buffers):
			h.buffers = append(h.buffers, b)
		case b != nil:
			err = errors.Join(err, b.Close())
		}
	}
	for i, channels := range h.before.channels {
		switch {
		case i >= len(h.channels):
			h.channels = append(h.channels, channels)
		case channels.PortChannels != nil:
			err = errors.Join(err, channels.Close())
		}
	}
	h.before = nil
	return err
}

// renewed returns the next of the buffers of the path before, with new memory that no peer has mapped, or
// nil if that is not of so many bytes or the driver cannot.
func (h *hostPath) renewed(bytes uint64) *gpu.Buffer {
	i := len(h.buffers)
	if h.before == nil || i >= len(h.before.buffers) {
		return nil
	}
	b := h.before.buffers[i]
	if b.Size() != bytes || b.Internal().Renew() != nil {
		return nil
	}
	h.before.buffers[i] = nil
	return b
}

// discard releases what is left of the path of a group before. Of one that has failed no error counts.
func (h *hostPath) discard() error {
	if h == nil {
		return nil
	}
	if err := h.close(); err != nil && h.comm.Err() == nil {
		return err
	}
	return nil
}
