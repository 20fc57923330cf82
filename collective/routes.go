package collective

import (
	"context"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	routeSlots     = 8         // kSlots of routes.cu
	mostRouteSlot  = 512 << 10 // bytes: a few of them keep a network busy
	routeTwinBytes = 4*8 + 2*4*routeSlots
)

// routesOf is Rails of routes.cu.
type routesOf struct {
	channels, order, progress, boxes gpu.Ptr
	slot                             uint64
	hosts, host, owners              uint32
	_                                uint32
}

// routeSlot returns the bytes of a slot, where a rank with so large a scratch has boxes of as many bytes
// together, or by default of farRoutes, for so many other hosts.
func routeSlot(room, others uint64) uint64 {
	if room == defaultScratch {
		room = farRoutes
	}
	return max(min(room/max(2*routeSlots*others, 1), mostRouteSlot)/line, 1) * line
}

// routes moves each part by the rail of its sender or receiver, and threads of their hosts. Its boxes are the
// runner's, for calls on any memories.
type routes struct{ traits }

// byRoutes returns the algorithm with a kernel.
func byRoutes(kernel string) *routes {
	return &routes{traits{name: "hier", kernel: kernel, unit: file("routes.cu"), hosts: true, between: true, shared: true, blocks: 2, threads: boundedThreads}}
}

func (a *routes) prepare(ctx context.Context, r *Runner, c *Call) (launch, error) {
	const warp = 32
	c.Threads = int(divideUp(uint64(c.Threads), warp) * warp)
	place := r.place
	k, h, err := r.byHost(ctx, c, &a.traits, pathKey{"routes", nil, nil}, func(h *hostPath) {
		h.outlasts = true
		twins := uint64(len(place.peers))
		h.slot = routeSlot(r.staging.room, uint64(len(place.hosts)-1))
		boxes := h.allocate(ctx, max(2*routeSlots*twins*h.slot, line), 0)
		progress := 4*4 + routeTwinBytes*twins
		h.allocate(ctx, progress, progress)
		upload(ctx, h, place.order())
		h.connect(ctx, boxes, communicator.PortChannelOptions{PerPeer: 2, Peers: place.peers})
	})
	if err != nil {
		return launch{}, err
	}
	way := routesOf{
		channels: h.handles(0), boxes: h.buffers[0].Ptr(), progress: h.buffers[1].Ptr(), order: h.buffers[2].Ptr(), slot: h.slot,
		hosts: uint32(len(place.hosts)), host: uint32(place.host), owners: uint32(place.owners),
	}
	args := []any{r.group, c.In.peers(), c.Out.peers(), way, c.part()}
	if c.Kind.Rooted() {
		args = append(args, place.root(c)...)
	}
	return k.copying(c, c.part()*uint64(r.comm.Size()), args), nil
}
