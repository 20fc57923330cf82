package topology

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// device is a PCI device.
type device struct {
	path []string // host bridge, bridges, the device itself; nil if unknown
	node int      // or Unknown
	cpus []int    // near it; nil if unknown

	virtual bool // a virtual function (SR-IOV): its ports are another device's

	gigatransfers float64 // 10^9 transfers a second of each lane of its link; 0 if unknown
	lanes         int     // of its link; 0 if unknown
}

// devices reads all PCI devices.
func (s sysfs) devices() (map[string]device, error) {
	const folder = "bus/pci/devices"
	names, err := s.names(folder)
	if err != nil {
		return nil, err
	}
	devices := make(map[string]device, len(names))
	for _, name := range names {
		id, ok := normalBusID(name)
		if !ok {
			return nil, nonsense(folder, fmt.Errorf("%.40q is not a PCI bus ID", name))
		}
		dir := folder + "/" + name
		d := device{path: pciPath(s.where(dir))}
		if len(d.path) < 2 { // not below a host bridge
			d.path = nil
		}
		if d.node, err = s.number(dir+"/numa_node", Unknown, maxID, Unknown); err != nil {
			return nil, err
		}
		if d.cpus, err = s.list(dir + "/local_cpulist"); err != nil {
			return nil, err
		}
		d.gigatransfers, d.lanes = s.link(dir)
		// Documentation/ABI/testing/sysfs-bus-pci in the kernel's source.
		_, err := fs.ReadLink(s.root, dir+"/physfn")
		d.virtual = err == nil
		devices[id] = d
	}
	return devices, nil
}

// normalBusID converts a PCI bus ID to the form of sysfs, such as "0000:1b:00.0". NVML
// uses a domain of eight digits and capital letters; people leave out the domain.
func normalBusID(s string) (id string, ok bool) {
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return "", false
	}
	slot, function, ok := strings.Cut(parts[2], ".")
	if !ok {
		return "", false
	}
	// A domain is 32 bits wide, a bus 8, a slot 5, a function 3.
	var n [4]uint64
	for i, f := range []struct {
		digits string
		bits   int
	}{{parts[0], 32}, {parts[1], 8}, {slot, 5}, {function, 3}} {
		v, err := strconv.ParseUint(f.digits, 16, f.bits)
		if err != nil || len(f.digits) > 8 {
			return "", false
		}
		n[i] = v
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), true
}

// pciPath returns the PCI part of a place in sysfs: of
// "devices/pci0000:16/0000:16:01.0/0000:17:00.0/net/eth0" the host bridge, the bridge
// and the device. It returns nil if there is none, as for virtual devices.
func pciPath(place string) []string {
	var found []string
	for part := range strings.SplitSeq(place, "/") {
		switch id, ok := normalBusID(part); {
		case ok:
			found = append(found, id)
		case isHostBridge(part):
			found = append(found, part)
		case len(found) > 0:
			return found
		}
	}
	return found
}

// isHostBridge reports whether s is a name such as "pci0000:16".
func isHostBridge(s string) bool {
	address, ok := strings.CutPrefix(s, "pci")
	if !ok {
		return false
	}
	_, ok = normalBusID(address + ":00.0")
	return ok
}

// busID returns the bus ID of the device at the end of a path, or "".
func busID(path []string) string {
	if len(path) < 2 {
		return ""
	}
	return path[len(path)-1]
}
