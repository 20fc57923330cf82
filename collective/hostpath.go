package collective

import (
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// hostPath is what an algorithm needs that moves data through the host, for a pair of
// memories: channels, and inboxes. It has a service of its own, so that it can be
// released by itself: a service keeps the channels that it has served. One thread of the runner's
// serves them all.
type hostPath struct {
	r        *Runner
	comm     *communicator.Communicator // of the group that it was made in
	service  *proxyservice.ProxyService
	channels []hostChannels
	buffers  []*gpu.Buffer
	slot     uint64    // bytes of a slot of an inbox that has slots
	outlasts bool      // kernels end before their peers have what they sent
	before   *hostPath // of the group before, while this one is made; what this one has taken of it is nil there
	err      error     // of what was added, after which nothing is
}

// hostChannels are channels with what they were made of.
type hostChannels struct {
	*communicator.PortChannels
	local, inbox *gpu.Buffer
}

// pathKey is what a host path is for: an algorithm, and its memories, which are nil where they do not matter.
type pathKey struct {
	use     string
	in, out *Memory
}

// hostPath returns the host path of a key, which fill completes at its first use in a group. There what the
// group before had for it is used again, at its addresses. The caller holds mu. Collective.
func (r *Runner) hostPath(ctx context.Context, key pathKey, fill func(*hostPath)) (_ *hostPath, err error) {
	h := &hostPath{r: r, comm: r.comm, before: r.hostPaths[key]}
	if h.before != nil && h.before.comm == r.comm {
		if h.before.err == nil {
			return h.before, nil
		}
		err, h.before = h.before.close(), nil // of a call that failed
	}
	delete(r.hostPaths, key)
	if err == nil {
		o := proxyservice.ServiceOptions{Options: proxyservice.Options{Threads: &r.threads}}
		if shared := r.comm.Internal().Threads(); shared != nil {
			o.Threads = shared
		}
		h.service, err = r.comm.ProxyService(ctx, o)
	}
	if _, h.err = r.exchange(ctx, "start a proxy service", "", err); h.err == nil {
		fill(h)
	}
	if err = h.err; err != nil && h.before == nil {
		return nil, errors.Join(err, h.close())
	}
	if err != nil { // which loses no address: the next group may come
		r.hostPaths[key] = h
		return nil, errors.Join(err, h.takeRest())
	}
	if err := h.before.close(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	h.before = nil
	r.hostPaths[key] = h
	r.prepared.made(func() error {
		if r.hostPaths[key] != h { // closed with its memory
			return nil
		}
		delete(r.hostPaths, key)
		return h.close()
	})
	return h, nil
}

// byHost gets the kernel and the host path of a call that is done by the host too. The caller holds mu. Collective.
func (r *Runner) byHost(ctx context.Context, c *Call, t *traits, key pathKey, fill func(*hostPath)) (k launchable, h *hostPath, err error) {
	if k, err = r.kernel(ctx, c, t); err == nil {
		err = r.enough(c, t, k)
	}
	if err == nil {
		h, err = r.hostPath(ctx, key, fill)
	}
	return k, h, err
}

// allocate adds a buffer, whose first bytes are zeros. Collective.
func (h *hostPath) allocate(ctx context.Context, bytes, zeros uint64) *gpu.Buffer {
	return addBuffer(ctx, h, bytes, make([]byte, zeros))
}

// upload adds a buffer that holds values. Collective.
func upload[T any](ctx context.Context, h *hostPath, values []T) {
	addBuffer(ctx, h, uint64(len(values))*uint64(unsafe.Sizeof(*new(T))), values)
}

// addBuffer adds a buffer of so many bytes, which begins with values. Collective.
func addBuffer[T any](ctx context.Context, h *hostPath, bytes uint64, values []T) *gpu.Buffer {
	if h.err != nil {
		return nil
	}
	b, err := h.renewed(bytes), error(nil)
	if b == nil {
		b, err = h.comm.Device().Alloc(bytes)
	}
	if err == nil {
		h.buffers = append(h.buffers, b)
		if len(values) > 0 {
			err = gpu.CopyIn(b, values)
		}
	}
	_, h.err = h.r.exchange(ctx, "allocate an inbox", "", err)
	return b
}

// smallest returns the least that any rank has room for, in bytes, as which a call takes
// all: where slots lie in an inbox must depend on what all ranks agree upon. Collective.
func (h *hostPath) smallest(ctx context.Context, mine uint64) uint64 {
	var all []proposal
	all, h.err = exchangeValues(ctx, h.r, "compare the sizes of buffers", proposals, proposal{number: mine}, nil)
	for _, theirs := range all {
		mine = min(mine, theirs.number)
	}
	return mine
}

// connect adds channels from a local buffer. Collective.
func (h *hostPath) connect(ctx context.Context, local *gpu.Buffer, o communicator.PortChannelOptions) {
	if h.err != nil {
		return
	}
	if o.Inbox == local {
		o.Inbox = nil
	}
	made := hostChannels{local: local, inbox: o.Inbox}
	if i := len(h.channels); h.before != nil && i < len(h.before.channels) {
		// All else in o follows from the ranks of the hosts.
		if old := &h.before.channels[i]; old.local == made.local && old.inbox == made.inbox {
			if _, h.err = old.Reform(ctx, h.comm, h.service); h.err == nil {
				made.PortChannels, old.PortChannels = old.PortChannels, nil
				h.channels = append(h.channels, made)
			}
			return
		}
	}
	if made.PortChannels, h.err = h.comm.PortChannels(ctx, h.service, local, o); h.err == nil {
		h.channels = append(h.channels, made)
	}
}

// handles returns channels' handles, or a null pointer where this rank has none.
func (h *hostPath) handles(i int) gpu.Ptr {
	if b := h.channels[i].Handles; b != nil {
		return b.Ptr()
	}
	return 0
}

// settle ends the service, and waits until what it was asked for is done at the peers, whose memory
// is there until then. No kernel of this rank uses it any more.
func (h *hostPath) settle(ctx context.Context) error {
	errs := []error{h.service.Close()}
	for _, channels := range h.channels {
		errs = append(errs, channels.Flush(ctx))
	}
	return errors.Join(errs...)
}

// worth returns an error, but of a group that has failed none: what calls return tells why.
func (h *hostPath) worth(err error) error {
	if h.comm.Err() != nil {
		return nil
	}
	return err
}

// closeService ends the service.
func (h *hostPath) closeService() error {
	if h.service == nil {
		return nil
	}
	return h.worth(h.service.Close())
}

// close releases everything, when no rank uses it any more.
func (h *hostPath) close() error {
	if h == nil {
		return nil
	}
	errs := []error{h.closeService()}
	for _, channels := range h.channels {
		errs = append(errs, channels.Close())
	}
	for _, b := range h.buffers {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return h.worth(errors.Join(errs...))
}

// keepPaths keeps the paths that serve a group as well, and closes the others. In those the same kernels do the same there:
// this rank has the same number, and each host the same ranks. No rank uses them any more.
func (r *Runner) keepPaths(comm *communicator.Communicator) error {
	for key, h := range r.hostPaths {
		if h.comm.Rank() == comm.Rank() && slices.EqualFunc(h.comm.Hosts(), comm.Hosts(), slices.Equal) {
			continue
		}
		if err := h.close(); err != nil {
			return err
		}
		delete(r.hostPaths, key)
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

// input returns the memory that holds a call's input.
func (c *Call) input() *Memory {
	if c.InPlace {
		return c.Out
	}
	return c.In
}
