package topology

import (
	"io/fs"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mscclgo/mscclgo"
)

const opDiscover = "topology: discover"

// Options are the sources of [Discover]. The zero value is this machine.
type Options struct {
	// NVML is asked about GPUs, by default the installed library. Discover calls its
	// Init and, if that succeeds, its Shutdown; NVML counts the calls.
	NVML nvml.Interface
	// NoGPUs leaves out the GPUs: NVML, which keeps descriptors open, is not loaded.
	NoGPUs bool
	// Sysfs is read instead of /sys. It must implement [fs.ReadLinkFS], since PCI
	// paths are the targets of symbolic links.
	Sysfs fs.FS
}

// Discover returns the hardware of this machine. It takes some milliseconds, or a
// second or more if the NVIDIA driver must wake a GPU.
//
// Errors: ErrSystem if sysfs cannot be read or is malformed. Absent hardware is not an
// error.
func Discover(o Options) (*Machine, error) {
	if o.Sysfs == nil {
		o.Sysfs = os.DirFS("/sys")
	}
	sys := sysfs{o.Sysfs}
	if _, err := fs.Stat(o.Sysfs, "."); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, opDiscover, "sysfs cannot be read; mount it at /sys: %w", err)
	}
	m := &Machine{}
	var err error
	if m.CPUs, err = sys.list("devices/system/cpu/online"); err != nil {
		return nil, err
	}
	if m.Nodes, err = sys.nodes(); err != nil {
		return nil, err
	}
	if m.devices, err = sys.devices(); err != nil {
		return nil, err
	}
	for id, d := range m.devices {
		if d.node == Unknown {
			d.node = m.nodeOf(d.cpus)
			m.devices[id] = d
		}
	}
	if m.NICs, err = sys.nics(m.devices); err != nil {
		return nil, err
	}
	if o.NoGPUs {
		return m, nil
	}
	if o.NVML == nil {
		o.NVML = nvml.New()
	}
	m.findGPUs(o.NVML)
	return m, nil
}

// nodeOf returns the only node that has all of cpus, or Unknown. If the machine has one
// node, cpus may be empty.
func (m *Machine) nodeOf(cpus []int) int {
	found := Unknown
	for _, n := range m.Nodes {
		if len(n.CPUs) == 0 || !contains(n.CPUs, cpus) {
			continue
		}
		if found != Unknown {
			return Unknown
		}
		found = n.ID
	}
	return found
}
