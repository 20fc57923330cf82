package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// railsOf is Rails of rails.cu.
type railsOf struct {
	twins, order, progress gpu.Ptr
	hosts, host, owners    uint32
	_                      uint32
}

// rails moves parts by threads within hosts, and between them by the hosts' ports, each once: what all ranks or hosts get.
type rails struct{ traits }

// byRails returns the algorithm with a kernel.
func byRails(kernel string) *rails {
	return &rails{traits{name: "hier", kernel: kernel, unit: file("rails.cu"), hosts: true, between: true, shared: true, blocks: 2, threads: boundedThreads}}
}

func (a *rails) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	place := r.place
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{"rails", nil, c.Out}, func(h *hostPath) {
		progress := 8 * uint64(1+len(place.hosts))
		h.allocate(ctx, progress, progress)
		upload(ctx, h, place.order())
		h.connect(ctx, c.Out.Buffer, communicator.PortChannelOptions{Peers: place.peers})
	})
	if err != nil {
		return launch{}, err
	}
	way := railsOf{
		twins: h.handles(0), progress: h.buffers[0].Ptr(), order: h.buffers[1].Ptr(),
		hosts: uint32(len(place.hosts)), host: uint32(place.host), owners: uint32(place.owners),
	}
	in := c.input().Ptr()
	if c.InPlace && c.Kind == AllGather {
		in += gpu.Ptr(uint64(r.comm.Rank()) * c.part())
	}
	args := []any{r.group, c.Out.peers(), way, in, c.part()}
	if c.Kind == AllGather {
		args = append(args, uint32(r.comm.Rank()))
	} else {
		args = append(args, place.root(c)...)
	}
	return k.copying(c, c.part(), args), nil
}

// copying returns the launch of a kernel with a block that looks after channels, besides blocks that copy so many bytes.
func (k launchable) copying(c *Call, bytes uint64, args []any) launch {
	copiers := divideUp(bytes, 16*uint64(c.Threads))
	blocks := 1 + int(min(copiers, uint64(max(c.Blocks, 2)-1), uint64(min(k.fit, devicecode.MaxBlocks)-1)))
	return launch{kernel: k.kernel, shape: gpu.Blocks(blocks, c.Threads), args: args}
}
