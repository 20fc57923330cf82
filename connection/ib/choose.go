package ib

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/topology"
)

// openFirst opens the devices that choose returns. Where the first of them does not open, choose is asked again
// without it, until it returns none. The error is about the devices that choose returned first: they serve the
// GPU best.
func openFirst(choose func(without []string) ([]string, error), open func(names []string) error) error {
	var first error
	for without := []string(nil); ; {
		names, err := choose(without)
		if err != nil {
			return cmp.Or(first, err)
		}
		if err = open(names); err == nil {
			return nil
		}
		first = cmp.Or(first, err)
		without = append(without, names[0])
	}
}

// chooseDevices returns the names of the devices that the options choose, but for the names in without.
// If the options name none, it also returns what the devices carry, in GB/s, where that is known.
func chooseDevices(o Options, device *gpu.Device, without []string) (names []string, carry map[string]float64, err error) {
	const op = "ib: choose a device"
	if o.Device != "" {
		if names, err = devices(o.Device); err == nil && slices.Contains(without, names[0]) {
			err = mscclgo.Errorf(mscclgo.ErrUnsupported, op, "no other is named than %s", o.Device)
		}
		return names, nil, err
	}
	all, err := verbs.Devices()
	if err != nil {
		return nil, nil, err
	}
	pci := device.Info().PCIBusID
	machine, err := topology.Discover(topology.Options{NoGPUs: pci == ""})
	if err != nil {
		return nil, nil, err
	}
	left := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(without, name) })
	names, carry = near(machine, pci, o, left)
	if len(names) == 0 {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "none of the RDMA devices %q has an active port; see ibv_devinfo", all)
	}
	return names, carry, nil
}

// near returns the names of the devices that serve a GPU, as many as there are queue pairs for, and
// what they carry where their rates are known. They are some of all, which this process may open: a
// container may have been given one of the devices that the machine shows it.
func near(machine *topology.Machine, pci string, o Options, all []string) (names []string, carry map[string]float64) {
	carry = map[string]float64{}
	usable := func(n topology.NIC) bool { return topology.RDMA(n) && slices.Contains(all, n.Name) }
	for _, n := range machine.NICsFor(pci, usable) {
		names = append(names, n.Name)
		if n.RateKnown() {
			carry[n.Name] = n.Bandwidth
		}
	}
	if o.QueuePairs > 0 {
		names = names[:min(len(names), o.QueuePairs)]
	}
	return names, carry
}

// Bandwidth returns what the transport's devices carry from the rank's GPU to the network, in GB/s
// (10^9 bytes per second) each way, by their line rates and the paths to them. It is 0 if
// [Options] or the environment name them, and if the rate of one is unknown.
func (t *Transport) Bandwidth() float64 { return t.bandwidth }

// together returns what devices carry, or 0 if that is unknown of one.
func together(nics []*nic, carry map[string]float64) (sum float64) {
	for _, n := range nics {
		if carry[n.name] == 0 {
			return 0
		}
		sum += carry[n.name]
	}
	return sum
}

// openNICs opens devices. If nobody named them, the first must open, and the second is left
// out if it does not: it may have no address, or no use of the GPU's memory.
func (t *Transport) openNICs(names []string) error {
	for i, name := range names {
		extra := i > 0 && t.o.Device == ""
		err := t.openNIC(name, extra)
		switch {
		case err != nil && extra:
			t.o.Logger.Info("large writes are not spread over two RDMA devices", "rank", t.reg.Rank(), "device", names[0], "left out", name, "error", err)
		case err != nil:
			return errors.Join(err, t.closeNICs())
		}
	}
	return nil
}

// openNIC opens one more device, if it can access the memory of the rank's GPU.
func (t *Transport) openNIC(name string, extra bool) error {
	n, err := openNIC(name, len(t.nics), t.o, sys())
	if err != nil {
		return err
	}
	if n.extra = extra; extra {
		err = t.nics[0].suits(n)
	}
	if err == nil {
		err = t.tryDeviceMemory(n)
	}
	if err != nil {
		return errors.Join(err, n.close())
	}
	t.nics = append(t.nics, n)
	t.o.Depth = min(t.o.Depth, n.attributes.Depth, n.attributes.Entries)
	return nil
}

// suits returns why peers that reach n may not reach another device in the same way, or would
// lose by it.
func (n *nic) suits(other *nic) error {
	const op = "ib: add a device"
	a, b := netip.AddrFrom16(n.gid), netip.AddrFrom16(other.gid)
	switch {
	case n.state.InfiniBand != other.state.InfiniBand:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%s and %s are not both on InfiniBand or both on Ethernet", n.name, other.name)
	case n.attributes.Atomics && !other.attributes.Atomics:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%s has no atomics, %s has", other.name, n.name)
	case !n.state.InfiniBand && (a.Is4In6() != b.Is4In6() || a.IsLinkLocalUnicast() != b.IsLinkLocalUnicast()):
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%s has the address %v, %s has %v, which is of another kind", n.name, a.Unmap(), other.name, b.Unmap())
	}
	return nil
}
