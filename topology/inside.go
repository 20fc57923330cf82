package topology

import "github.com/mscclgo/mscclgo/internal/inside"

// Internal is for packages of this module.
func (m *Machine) Internal() inside.Machine[GPU, Path, NearNIC, Route] { return machineInside{m} }

type (
	machineInside struct{ *Machine }

	fabric    = inside.Fabric[Path]
	servedGPU = inside.Served[NearNIC]
	hop       = inside.Hop
)

func (m machineInside) Route(a, b string) Route { return m.route(a, b) }

func (machineInside) LinksTo(g, other GPU) (links int, known bool) {
	links, _, known = g.linksTo(other)
	return links, known
}
