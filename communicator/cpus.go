package communicator

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/topology"
)

// nearCPUs returns the CPUs near this rank's device that the process may run on, or nil where they are unknown. Where
// it may run on none of them, as in a container with CPUs of another NUMA node, they are its own: a proxy works on
// any CPU, only slower.
func (c *Communicator) nearCPUs() []int {
	id := c.dev.Info().PCIBusID
	if id == "" {
		return nil
	}
	machine, err := topology.Discover(topology.Options{})
	if err != nil {
		c.options.Logger.Info("the machine's topology is unknown", "rank", c.Rank(), "error", err)
		return nil
	}
	cpus, err := machine.CPUsNear(id)
	if err != nil {
		c.options.Logger.Info("the CPUs near the device are unknown", "rank", c.Rank(), "device", c.dev, "error", err)
		return nil
	}
	return c.within(cpus)
}

// within returns the CPUs of a list that the process may run on. If there are none, it returns all that it may run on.
func (c *Communicator) within(cpus []int) []int {
	own, err := ownCPUs()
	if err != nil {
		c.options.Logger.Info("the CPUs that this process may run on are unknown", "rank", c.Rank(), "error", err)
		return nil
	}
	if near := slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(own, cpu) }); len(near) > 0 {
		return near
	}
	c.options.Logger.Info("this process may run on no CPU near the device; its proxies run where it does", "rank", c.Rank(), "device", c.dev)
	return own
}

// ownCPUs returns the CPUs that threads which the caller's starts may run on, as taskset, srun, mpirun and the
// program itself have left them.
func ownCPUs() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	for cpu := range 8 * int(unsafe.Sizeof(set)) {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
