package main

import (
	"context"
	_ "embed"
	"errors"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed ring.cu
var ringSource []byte

// ringReducer launches the kernels of ring.cu for one output buffer.
type ringReducer struct {
	comm     *communicator.Communicator
	service  *proxyservice.ProxyService
	module   *gpu.Module
	out      *gpu.Buffer
	inbox    *gpu.Buffer                // as large as out and a line for each rank
	toInbox  *communicator.PortChannels // from out into the next rank's inbox
	toOutput *communicator.PortChannels // from out into the next rank's out
	blocks   int                        // each with channels of its own
	threads  int
}

// newRingReducer loads the kernels and makes the channels. Collective.
func newRingReducer(ctx context.Context, comm *communicator.Communicator, out *gpu.Buffer, blocks, threads int) (r *ringReducer, err error) {
	r = &ringReducer{comm: comm, out: out, blocks: blocks, threads: threads}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	dev := comm.Device()
	if r.module, err = devicecode.Load(ctx, dev, "ring.cu", ringSource, devicecode.Options{}); err != nil {
		return r, err
	}
	if r.inbox, err = dev.Alloc(out.Size() + uint64(16*comm.Size())); err != nil {
		return r, err
	}
	if r.service, err = comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return r, err
	}
	if r.toInbox, err = comm.PortChannels(ctx, r.service, out, communicator.PortChannelOptions{PerPeer: blocks, Inbox: r.inbox}); err != nil {
		return r, err
	}
	r.toOutput, err = comm.PortChannels(ctx, r.service, out, communicator.PortChannelOptions{PerPeer: blocks})
	return r, err
}

// launch queues the all-reduce of count elements from in to the output buffer.
func (r *ringReducer) launch(s *gpu.Stream, typ, op string, in *gpu.Buffer, count uint64) error {
	kernel, err := r.module.Kernel("ring_" + typ + "_" + op)
	if err != nil {
		return err
	}
	return kernel.Launch(s, gpu.Blocks(r.blocks, r.threads), r.toInbox.Handles, r.toOutput.Handles,
		r.comm.Rank(), r.comm.Size(), in, r.out, r.inbox, count)
}

// close releases everything, when no rank uses the ring any more.
func (r *ringReducer) close() error {
	var errs []error
	if r.service != nil {
		errs = append(errs, r.service.Close())
	}
	for _, channels := range []*communicator.PortChannels{r.toInbox, r.toOutput} {
		if channels != nil {
			errs = append(errs, channels.Close())
		}
	}
	if r.inbox != nil {
		errs = append(errs, r.inbox.Close())
	}
	if r.module != nil {
		errs = append(errs, r.module.Close())
	}
	return errors.Join(errs...)
}
