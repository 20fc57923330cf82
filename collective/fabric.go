package collective

import (
	"math"

	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/topology"
)

// fabricBytes is enough for a fabric that is encoded.
const fabricBytes = 128

// encodeFabric writes what a rank knows of the links, or that it knows nothing, for the other ranks.
func encodeFabric(w *wire.Writer, f *topology.Fabric) {
	w.Bool(f != nil)
	if f == nil {
		return
	}
	w.U8(uint8(f.Path))
	w.Bool(f.RDMA)
	for _, v := range bandwidths(f) {
		w.U64(math.Float64bits(*v))
	}
}

// decodeFabric reads what encodeFabric wrote. Ranks and Hosts are 0.
func decodeFabric(r *wire.Reader) *topology.Fabric {
	if !r.Bool() {
		return nil
	}
	f := &topology.Fabric{Path: topology.Path(r.U8()), RDMA: r.Bool()}
	for _, v := range bandwidths(f) {
		*v = math.Float64frombits(r.U64())
	}
	return f
}

// bandwidths returns all bandwidths.
func bandwidths(f *topology.Fabric) []*float64 {
	return []*float64{&f.All, &f.Next, &f.NIC, &f.Net}
}

// narrower returns a fabric that is as f in the numbers of ranks, and has the farther paths and
// the narrower links of both; nil if either is.
func narrower(f, other *topology.Fabric) *topology.Fabric {
	if f == nil || other == nil {
		return nil
	}
	both := *f
	both.Path, both.RDMA = max(f.Path, other.Path), f.RDMA && other.RDMA
	theirs := bandwidths(other)
	for i, v := range bandwidths(&both) {
		*v = min(*v, *theirs[i])
	}
	return &both
}
