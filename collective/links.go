package collective

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/topology"
)

// linkMessage is what a rank tells the others of its links, or what all have told. fabric counts if it is known.
type linkMessage struct {
	link         string `wire:"16"` // see [Runner.Link]
	lines, known bool
	fabric       fabric
}

// and returns what is true of both: of a fabric known to both, with the numbers of ranks of m, the farther path and the
// narrower links.
func (m linkMessage) and(o linkMessage) linkMessage {
	if m.link != o.link {
		m.link = otherLink
	}
	m.lines, m.known = m.lines && o.lines, m.known && o.known
	f, theirs := &m.fabric, &o.fabric
	f.Path, f.RDMA = max(f.Path, theirs.Path), f.RDMA && theirs.RDMA
	f.All, f.Next = min(f.All, theirs.All), min(f.Next, theirs.Next)
	f.NIC, f.Net = min(f.NIC, theirs.NIC), min(f.Net, theirs.Net)
	return m
}

// rules returns the rules for the links, or nil where these are unknown.
func (m linkMessage) rules() *linkRules {
	if !m.known {
		return nil
	}
	if !m.lines { // no packets of 128 bytes, as over PCIe
		m.fabric.Path = max(m.fabric.Path, topology.PathPIX)
	}
	return rulesFor(&m.fabric)
}

// ownLinks returns what this rank tells of its links: their kind; whether 128 bytes arrive whole, as by NVLinks, on one
// GPU and on emulated devices; and what joins the ranks. Collective.
func (r *Runner) ownLinks(ctx context.Context) (m linkMessage, err error) {
	comm, machine, arch := r.comm, r.machine, r.arch
	id := comm.Device().Info().UUID
	ids, err := r.exchange(ctx, "compare the devices", string(id[:])+arch, nil)
	if err != nil {
		return m, err
	}
	m.link = otherLink
	switch {
	case machine == nil && arch == emulated:
		m.link = emulatedLink
	case machine != nil && alike(arch, ids) && linked(comm, machine, ids):
		m.link = NVLink
	}
	m.lines = m.link != otherLink || alike(arch, ids) && shared(comm, ids)
	if machine != nil {
		m.fabric, m.known = fabricAmong(comm, machine, ids)
	}
	return m, nil
}

// fabric is what joins the ranks of a group.
type fabric = inside.Fabric[topology.Path]

// fabricAmong returns what joins the ranks of a communicator, as this rank's machine
// has it. It is not known if the machine does not have all GPUs, or they are shared.
func fabricAmong(comm *communicator.Communicator, machine *topology.Machine, ids []string) (f fabric, known bool) {
	var gpus []topology.GPU
	for _, rank := range comm.HostRanks() {
		g, found := machine.GPU(uuid(ids[rank]))
		if !found || slices.ContainsFunc(gpus, func(o topology.GPU) bool { return o.UUID == g.UUID }) {
			return f, false
		}
		gpus = append(gpus, g)
	}
	rest, way := *machine, between(comm)
	rest.NICs = slices.DeleteFunc(slices.Clone(machine.NICs), func(n topology.NIC) bool {
		// A RoCE card's interfaces are NICs of their own, and a device of InfiniBand may be named, though Ethernet is faster.
		return way == registeredmem.Ethernet && topology.RDMA(n) || way == registeredmem.InfiniBand && n.Kind == topology.Ethernet
	})
	f, err := onlyWith(&rest, gpus).Internal().Fabric(len(comm.Hosts()))
	f.Ranks = comm.Size()
	return f, err == nil
}

// between returns the transport by which this rank reaches ranks of other hosts, the slowest of several:
// Ethernet, InfiniBand, or 0 if it is neither.
func between(comm *communicator.Communicator) (slowest registeredmem.Transports) {
	for rank := range comm.Size() {
		switch t, err := comm.Transport(rank); {
		case err == nil && t == registeredmem.Ethernet:
			return t
		case err == nil && t == registeredmem.InfiniBand:
			slowest = t
		}
	}
	return slowest
}

// onlyWith returns a machine with some of its GPUs, in this order, and with the NICs that serve
// these. Transports leave the NICs of the others alone.
func onlyWith(machine *topology.Machine, gpus []topology.GPU) *topology.Machine {
	only := *machine
	only.GPUs, only.NICs = gpus, nil
	serves := map[string]bool{}
	for _, s := range machine.Internal().Serving() {
		if slices.ContainsFunc(gpus, func(g topology.GPU) bool { return g.UUID == machine.GPUs[s.GPU].UUID }) {
			serves[s.Near.Name] = true
		}
	}
	for _, n := range machine.NICs {
		if serves[n.Name] {
			only.NICs = append(only.NICs, n)
		}
	}
	return &only
}

// uuid returns the UUID with which what a rank tells of its device begins.
func uuid(id string) (u [16]byte) {
	copy(u[:], id)
	return u
}

// emulated is the architecture of emulated devices.
const emulated = "emu"

// alike reports whether the devices of all ranks, whose UUIDs and architectures these are, have this compute
// capability, and a warp's store of 128 bytes is one there.
func alike(arch string, ids []string) bool {
	capability, err := strconv.Atoi(strings.TrimPrefix(arch, "sm_"))
	return err == nil && capability >= 70 && !slices.ContainsFunc(ids, func(id string) bool { return len(id) < 16 || id[16:] != arch })
}

// shared reports whether all ranks whose memory is mapped are on this rank's GPU.
func shared(comm *communicator.Communicator, ids []string) bool {
	return !slices.ContainsFunc(comm.HostRanks(), func(rank int) bool { return ids[rank] != ids[comm.Rank()] })
}

// linked reports whether this rank's GPU has NVLinks, and reaches by them the GPU of every other
// rank whose memory is mapped. Where bridges join pairs of GPUs, GPUs of two pairs reach each
// other over PCIe, which may split 128 bytes. ids begin with the UUIDs of all ranks' GPUs.
func linked(comm *communicator.Communicator, machine *topology.Machine, ids []string) bool {
	own, _ := machine.GPU(comm.Device().Info().UUID)
	if !slices.ContainsFunc(own.NVLinks, func(l topology.Link) bool { return l.Active }) {
		return false
	}
	for _, rank := range comm.HostRanks() {
		id := uuid(ids[rank])
		if id == own.UUID {
			continue
		}
		peer, found := machine.GPU(id)
		links, known := machine.Internal().LinksTo(own, peer)
		if found && known && links == 0 || !comm.Device().Internal().CanUpdate(id) {
			return false
		}
	}
	return true
}

// machineOf returns the machine of a device with links, and nil of others.
func machineOf(dev *gpu.Device) *topology.Machine {
	if dev.Info().PCIBusID == "" {
		return nil
	}
	machine, err := topology.Discover(topology.Options{})
	if err != nil {
		return nil
	}
	return machine
}
