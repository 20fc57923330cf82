package collective

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// hostPath is what an algorithm needs that moves data through the host, for a pair of
// memories: channels, and inboxes. It has a service of its own, so that it can be
// released by itself: a service keeps the channels that it has served.
type hostPath struct {
	r        *Runner
	service  *proxyservice.ProxyService
	channels []*communicator.PortChannels
	buffers  []*gpu.Buffer
	slot     uint64 // bytes of a slot of an inbox that has slots
}

// pathKey is what a host path is for. in is nil where the input does not matter.
type pathKey struct {
	through path
	in, out *Memory
	grow    uint64 // how much longer than the data its slots are
}

// hostPath returns the host path of a key, which fill completes at its first use. The
// caller holds mu. Collective.
func (r *Runner) hostPath(ctx context.Context, key pathKey, fill func(*hostPath) error) (_ *hostPath, err error) {
	if h := r.hostPaths[key]; h != nil {
		return h, nil
	}
	h := &hostPath{r: r}
	h.service, err = r.comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if _, err = r.exchange(ctx, "start a proxy service", "", err); err == nil {
		err = fill(h)
	}
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	r.hostPaths[key] = h
	return h, nil
}

// allocate adds a buffer, whose first bytes are zeros. Collective.
func (h *hostPath) allocate(ctx context.Context, bytes, zeros uint64) (*gpu.Buffer, error) {
	b, err := h.r.comm.Device().Alloc(bytes)
	if err == nil {
		h.buffers = append(h.buffers, b)
		if zeros > 0 {
			err = gpu.CopyIn(b, make([]byte, zeros))
		}
	}
	_, err = h.r.exchange(ctx, "allocate an inbox", "", err)
	return b, err
}

// upload adds a buffer that holds values. Collective.
func upload[T any](ctx context.Context, h *hostPath, values []T) error {
	b, err := gpu.Upload(h.r.comm.Device(), values)
	if err == nil {
		h.buffers = append(h.buffers, b)
	}
	_, err = h.r.exchange(ctx, "upload a table", "", err)
	return err
}

// smallest returns the least that any rank has room for, in bytes, as which a call takes
// all: where slots lie in an inbox must depend on what all ranks agree upon. Collective.
func (h *hostPath) smallest(ctx context.Context, mine uint64) (uint64, error) {
	w := wire.NewWriter(8)
	w.U64(mine)
	all, err := h.r.exchange(ctx, "compare the sizes of buffers", string(w.Bytes()), nil)
	if err != nil {
		return 0, err
	}
	least := mine
	for rank, b := range all {
		read := wire.NewReader([]byte(b))
		size := read.U64()
		if err := read.End(); err != nil {
			return 0, h.r.because(rank, mscclgo.ErrRemote, "collective: compare the sizes of buffers", "its size is malformed: %w", err)
		}
		least = min(least, size)
	}
	return least, nil
}

// connect adds channels from a local buffer. Collective.
func (h *hostPath) connect(ctx context.Context, local *gpu.Buffer, o communicator.PortChannelOptions) error {
	if o.Inbox == local {
		o.Inbox = nil
	}
	channels, err := h.r.comm.PortChannels(ctx, h.service, local, o)
	if err == nil {
		h.channels = append(h.channels, channels)
	}
	return err
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

// close releases everything, when no rank uses it any more.
func (h *hostPath) close() error {
	var errs []error
	if h.service != nil {
		if err := h.service.Close(); h.r.comm.Err() == nil {
			errs = append(errs, err) // else what calls return tells why
		}
	}
	for _, channels := range h.channels {
		errs = append(errs, channels.Close())
	}
	for _, b := range h.buffers {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// input returns the memory that holds a call's input.
func (c *Call) input() *Memory {
	if c.InPlace {
		return c.Out
	}
	return c.In
}
