package collective

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed kernels/ring.cu
var ringSource []byte

//go:embed kernels/exchange.cu
var exchangeSource []byte

// hostPath is what the algorithms need that move data through the host: a
// service, and channels for each pair of buffers and each output that was used.
type hostPath struct {
	comm      *communicator.Communicator
	service   *proxyservice.ProxyService
	exchanges map[[2]*gpu.Buffer]*communicator.PortChannels
	rings     map[*gpu.Buffer]*ringChannels
	hiers     map[uint64]*hierChannels
	staged    map[[2]*gpu.Buffer]*stagedChannels
}

// ringChannels are what the ring needs for one output.
type ringChannels struct {
	inbox    *gpu.Buffer                // as large as the output and a line for each rank
	toInbox  *communicator.PortChannels // from the output into the next rank's inbox
	toOutput *communicator.PortChannels // from the output into the next rank's output
}

// ringBlocks is how many blocks the ring has: each has connections of its own.
const ringBlocks = 4

// hostPath makes the service at its first use.
func (r *Runner) hostPath(ctx context.Context) (*hostPath, error) {
	if r.host != nil {
		return r.host, nil
	}
	service, err := r.comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return nil, err
	}
	r.host = &hostPath{
		comm: r.comm, service: service,
		exchanges: map[[2]*gpu.Buffer]*communicator.PortChannels{},
		rings:     map[*gpu.Buffer]*ringChannels{},
		hiers:     map[uint64]*hierChannels{},
		staged:    map[[2]*gpu.Buffer]*stagedChannels{},
	}
	return r.host, nil
}

// exchange prepares a call by exchange.cu.
func (r *Runner) exchange(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	ranks, rank := uint32(r.comm.Size()), uint32(r.comm.Rank())
	if c.Threads < int(ranks) {
		return nil, fmt.Errorf("%s needs a thread for each of %d ranks, not %d", c.Algorithm, ranks, c.Threads)
	}
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return nil, err
	}
	h, err := r.hostPath(ctx)
	if err != nil {
		return nil, err
	}
	local := c.In.Buffer
	if c.InPlace {
		local = c.Out.Buffer
	}
	channels, err := h.exchangeChannels(ctx, local, c.Out.Buffer)
	if err != nil {
		return nil, err
	}
	// The offsets are in the buffers, and every rank's are alike.
	type peers struct{ First, Count uint32 }
	others, fan := peers{1, ranks - 1}, uint64(max(ranks, 2)-1)
	to, from, part := others, others, c.part()
	src, dst, stride := uint64(0), uint64(0), uint64(0)
	own, place := local.Ptr(), c.Out.Ptr()
	if c.Collective.gathered {
		dst = uint64(rank) * part
		place += gpu.Ptr(dst)
	}
	if c.Collective.scattered {
		stride = part
		own += gpu.Ptr(uint64(rank) * part)
	} else if c.InPlace && c.Collective.gathered {
		src = uint64(rank) * part
		own += gpu.Ptr(src)
	}
	switch {
	case c.Collective.Rooted && rank == uint32(c.Root):
		from = peers{}
	case c.Collective.Rooted:
		to, from, own = peers{}, peers{(uint32(c.Root) + ranks - rank) % ranks, 1}, 0
	case !c.Collective.gathered && ranks > 1: // to the next rank
		to, from, own, fan = peers{1, 1}, peers{ranks - 1, 1}, 0, 1
	}
	// The grid is alike on all ranks, also where nothing stays.
	blocks, lead := 1, uint64(0)
	if !c.InPlace && (own != 0 || c.Collective.Rooted) {
		blocks += min(c.Blocks, 16)
	}
	if len(r.comm.Hosts()) == 1 && fit > 1 {
		if lead = exchangeLead(part, fan); lead > 0 {
			blocks = 1 + min(max(c.Blocks, 16), fit-1)
		}
	}
	call := struct {
		Channels         gpu.Ptr
		Rank, Ranks      uint32
		To, From         peers
		Dst, Src, Stride uint64
		Bytes, Lead      uint64
	}{channels.Handles.Ptr(), rank, ranks, to, from, dst, src, stride, part, lead}
	return &Operation{kernel, gpu.Blocks(blocks, c.Threads), []any{call, own, place, r.group, local, c.Out.Peers}}, nil
}

// exchangeLead gives how much of each of `fan` parts threads move, which takes them
// about as long as a copy engine needs to begin: 9 us over NVLink.
func exchangeLead(part, fan uint64) uint64 {
	const all = 3 << 20
	return min(all/fan, part/8) / line * line
}

// exchangeChannels gives the channels from one buffer into all ranks' other one.
func (h *hostPath) exchangeChannels(ctx context.Context, local, inbox *gpu.Buffer) (*communicator.PortChannels, error) {
	pair := [2]*gpu.Buffer{local, inbox}
	if channels := h.exchanges[pair]; channels != nil {
		return channels, nil
	}
	options := communicator.PortChannelOptions{Inbox: inbox}
	if local == inbox {
		options.Inbox = nil
	}
	channels, err := h.comm.PortChannels(ctx, h.service, local, options)
	if err != nil {
		return nil, err
	}
	h.exchanges[pair] = channels
	return channels, nil
}

// ring prepares a call by ring.cu.
func (r *Runner) ring(ctx context.Context, c *Call, a algorithm) (*Operation, error) {
	kernel, fit, err := r.kernel(ctx, c, a)
	if err != nil {
		return nil, err
	}
	h, err := r.hostPath(ctx)
	if err != nil {
		return nil, err
	}
	channels, err := h.ringChannels(ctx, c.Out.Buffer)
	if err != nil {
		return nil, err
	}
	in := c.In.Buffer
	if c.InPlace {
		in = c.Out.Buffer
	}
	return &Operation{kernel, gpu.Blocks(min(c.Blocks, ringBlocks, fit), c.Threads), []any{
		channels.toInbox.Handles, channels.toOutput.Handles, uint32(r.comm.Rank()), uint32(r.comm.Size()),
		in, c.Out.Buffer, channels.inbox, c.part(),
	}}, nil
}

// ringChannels gives the channels for one output.
func (h *hostPath) ringChannels(ctx context.Context, out *gpu.Buffer) (_ *ringChannels, err error) {
	if channels := h.rings[out]; channels != nil {
		return channels, nil
	}
	c := &ringChannels{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.inbox, err = h.comm.Device().Alloc(out.Size() + uint64(16*h.comm.Size())); err != nil {
		return nil, err
	}
	if c.toInbox, err = h.comm.PortChannels(ctx, h.service, out, communicator.PortChannelOptions{PerPeer: ringBlocks, Inbox: c.inbox}); err != nil {
		return nil, err
	}
	if c.toOutput, err = h.comm.PortChannels(ctx, h.service, out, communicator.PortChannelOptions{PerPeer: ringBlocks}); err != nil {
		return nil, err
	}
	h.rings[out] = c
	return c, nil
}

func (c *ringChannels) close() error {
	var errs []error
	for _, channels := range []*communicator.PortChannels{c.toOutput, c.toInbox} {
		if channels != nil {
			errs = append(errs, channels.Close())
		}
	}
	if c.inbox != nil {
		errs = append(errs, c.inbox.Close())
	}
	return errors.Join(errs...)
}

// close releases everything, when no rank uses it any more.
func (h *hostPath) close() error {
	errs := []error{h.service.Close()}
	for _, channels := range h.exchanges {
		errs = append(errs, channels.Close())
	}
	for _, channels := range h.rings {
		errs = append(errs, channels.close())
	}
	for _, channels := range h.hiers {
		errs = append(errs, channels.close())
	}
	for _, channels := range h.staged {
		errs = append(errs, channels.close())
	}
	return errors.Join(errs...)
}
