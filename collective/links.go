package collective

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
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

// linkOf returns what [Runner.Link] does; whether 128 bytes arrive whole, as by those links, on one GPU and on emulated
// devices; and the rules for the links between the ranks, nil if these are not known to all. All are
// the same on all ranks. machine is nil where the device, of that architecture, has no links. Collective.
func linkOf(ctx context.Context, comm *communicator.Communicator, machine *topology.Machine, arch string) (link string, lines bool, links *linkRules, err error) {
	const op = "collective: compare the links"
	// By their names, ranks in other calls are told apart: one whose context has ended may be a step ahead.
	gather := func(name string, mine []byte) ([][]byte, error) {
		w := wire.NewWriter(len(name) + len(mine) + 16)
		w.String(name)
		w.Blob(mine)
		all, err := comm.AllGather(ctx, w.Bytes())
		if err != nil {
			return nil, err
		}
		for rank, b := range all {
			r := wire.NewReader(b)
			if err := sameStep(r, comm.Rank(), rank, op, name); err != nil {
				return nil, err
			}
			all[rank] = r.Blob(linkBytes)
			if err := r.End(); err != nil {
				return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its message is malformed: %w", err).At(comm.Rank(), rank)
			}
		}
		return all, nil
	}
	id := comm.Device().Info().UUID
	ids, err := gather("compare the devices", append(id[:], arch...))
	if err != nil {
		return "", false, nil, err
	}
	var own *topology.Fabric
	link = otherLink
	switch {
	case machine == nil && arch == emulated:
		link = emulatedLink
	case machine != nil && alike(arch, ids) && linked(comm, machine, ids):
		link = NVLink
	}
	mine := linkMessage{link: link, lines: link != otherLink || alike(arch, ids) && shared(comm, ids)}
	if machine != nil {
		own = fabricAmong(comm, machine, ids)
	}
	if own != nil {
		mine.known, mine.fabric = true, *own
	}
	all, err := gather("compare the links", linkMessages.Marshal(&mine))
	if err != nil {
		return "", false, nil, err
	}
	lines, fabric := true, own
	for rank, b := range all {
		theirs, err := linkMessages.Unmarshal(b)
		if err != nil {
			return "", false, nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its message is malformed: %w", err).At(comm.Rank(), rank)
		}
		if theirs.link != link {
			link = otherLink
		}
		lines = theirs.lines && lines
		fabric = narrower(fabric, theirs)
	}
	if fabric != nil && !lines { // no packets of 128 bytes, as over PCIe
		fabric.Path = max(fabric.Path, topology.PathPIX)
	}
	return link, lines, rulesFor(fabric), nil
}

// fabricAmong returns what joins the ranks of a communicator, as this rank's machine
// has it; nil if it does not have all GPUs, or they are shared.
func fabricAmong(comm *communicator.Communicator, machine *topology.Machine, ids [][]byte) *topology.Fabric {
	var gpus []topology.GPU
	for _, rank := range comm.HostRanks() {
		var id [16]byte
		copy(id[:], ids[rank])
		g, found := machine.GPU(id)
		if !found || slices.ContainsFunc(gpus, func(o topology.GPU) bool { return o.UUID == g.UUID }) {
			return nil
		}
		gpus = append(gpus, g)
	}
	switch between(comm) {
	case registeredmem.Ethernet:
		machine = without(machine, topology.RDMA)
	case registeredmem.InfiniBand: // a device may be named, though Ethernet is faster
		machine = without(machine, func(n topology.NIC) bool { return n.Kind == topology.Ethernet })
	}
	f, err := onlyWith(machine, gpus).Fabric(len(comm.Hosts()))
	if err != nil {
		return nil
	}
	f.Ranks = comm.Size()
	return &f
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

// without returns a machine without some of its NICs. A RoCE card's interfaces are NICs of their own.
func without(machine *topology.Machine, nics func(topology.NIC) bool) *topology.Machine {
	rest := *machine
	rest.NICs = slices.DeleteFunc(slices.Clone(machine.NICs), nics)
	return &rest
}

// onlyWith returns a machine with some of its GPUs, in this order, and with the NICs that serve
// these. Transports leave the NICs of the others alone.
func onlyWith(machine *topology.Machine, gpus []topology.GPU) *topology.Machine {
	only := *machine
	only.GPUs, only.NICs = gpus, nil
	serves := map[string]bool{}
	for _, s := range machine.Serving() {
		if slices.ContainsFunc(gpus, func(g topology.GPU) bool { return g.UUID == machine.GPUs[s.GPU].UUID }) {
			serves[s.Name] = true
		}
	}
	for _, n := range machine.NICs {
		if serves[n.Name] {
			only.NICs = append(only.NICs, n)
		}
	}
	return &only
}

// emulated is the architecture of emulated devices.
const emulated = "emu"

// alike reports whether the devices of all ranks, whose UUIDs and architectures these are, have this compute
// capability, and a warp's store of 128 bytes is one there.
func alike(arch string, ids [][]byte) bool {
	capability, err := strconv.Atoi(strings.TrimPrefix(arch, "sm_"))
	return err == nil && capability >= 70 && !slices.ContainsFunc(ids, func(id []byte) bool { return len(id) < 16 || string(id[16:]) != arch })
}

// shared reports whether all ranks whose memory is mapped are on this rank's GPU.
func shared(comm *communicator.Communicator, ids [][]byte) bool {
	return !slices.ContainsFunc(comm.HostRanks(), func(rank int) bool { return string(ids[rank]) != string(ids[comm.Rank()]) })
}

// linked reports whether this rank's GPU has NVLinks, and reaches the GPU of every other rank
// whose memory is mapped by them: where bridges join pairs of GPUs, GPUs of two pairs reach
// each other over PCIe, which may split 128 bytes. ids begin with the UUIDs of all ranks' GPUs.
func linked(comm *communicator.Communicator, machine *topology.Machine, ids [][]byte) bool {
	own, _ := machine.GPU(comm.Device().Info().UUID)
	if !slices.ContainsFunc(own.NVLinks, func(l topology.Link) bool { return l.Active }) {
		return false
	}
	for _, rank := range comm.HostRanks() {
		var id [16]byte
		copy(id[:], ids[rank])
		if id == own.UUID {
			continue
		}
		peer, found := machine.GPU(id)
		links, known := own.LinksTo(peer)
		if found && known && links == 0 || !comm.Device().CanUpdate(id) {
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
