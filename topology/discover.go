package topology

import (
	"io/fs"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mscclgo/mscclgo"
)

const opDiscover = "topology: discover"

// Option changes where Discover looks.
type Option func(*sources)

type sources struct {
	nvml  nvml.Interface
	sysfs fs.FS
}

// WithNVML has Discover ask lib about GPUs. Discover calls its Init, and its
// Shutdown if that succeeds; NVML counts the two.
func WithNVML(lib nvml.Interface) Option {
	return func(s *sources) { s.nvml = lib }
}

// WithSysfs has Discover read root in the place of /sys. root must be able to
// read symbolic links ([fs.ReadLinkFS]): PCI paths are in their targets.
func WithSysfs(root fs.FS) Option {
	return func(s *sources) { s.sysfs = root }
}

// Discover finds out what is in this machine. It takes some milliseconds, or a
// second or more where the NVIDIA driver must wake a GPU. It fails if sysfs
// cannot be read or holds nonsense (ErrSystem), not where something is absent.
func Discover(opts ...Option) (*Machine, error) {
	var from sources
	for _, o := range opts {
		o(&from)
	}
	if from.sysfs == nil {
		from.sysfs = os.DirFS("/sys")
	}
	if from.nvml == nil {
		from.nvml = nvml.New()
	}

	sys := sysfs{from.sysfs}
	if _, err := fs.Stat(from.sysfs, "."); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, opDiscover, "sysfs is not there; mount it at /sys: %w", err)
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
	m.findGPUs(from.nvml)
	return m, nil
}

// nodeOf gives the one node that holds all of cpus, or Unknown. A machine of
// one node needs no CPUs to know.
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
