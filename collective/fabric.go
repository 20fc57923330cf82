package collective

import (
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/topology"
)

// linkMessage is what a rank tells the others of its links; see linkOf. fabric is zero unless it is known.
type linkMessage struct {
	link         string `wire:"16"`
	lines, known bool
	fabric       topology.Fabric
}

var linkMessages = wire.For[linkMessage]()

// linkBytes is enough for a message, or for a device.
const linkBytes = 128

// bandwidths returns all bandwidths.
func bandwidths(f *topology.Fabric) []*float64 {
	return []*float64{&f.All, &f.Next, &f.NIC, &f.Net}
}

// narrower returns a fabric that is as f in the numbers of ranks, and has the farther paths and
// the narrower links of both; nil if either is not known.
func narrower(f *topology.Fabric, m linkMessage) *topology.Fabric {
	if f == nil || !m.known {
		return nil
	}
	both, other := *f, &m.fabric
	both.Path, both.RDMA = max(f.Path, other.Path), f.RDMA && other.RDMA
	theirs := bandwidths(other)
	for i, v := range bandwidths(&both) {
		*v = min(*v, *theirs[i])
	}
	return &both
}
