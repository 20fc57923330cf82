package communicator

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/topology"
)

// nearCPUs returns the CPUs near this rank's device, or nil where they are unknown, or this process may
// run on none of them, as in a container with CPUs of another NUMA node: a proxy works on any CPU, only
// slower.
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
	if err := mayRunOn(cpus); err != nil {
		c.options.Logger.Info("this process may run on no CPU near the device; its proxies run on any", "rank", c.Rank(), "device", c.dev, "near", cpus, "error", err)
		return nil
	}
	return cpus
}

// mayRunOn returns an error if threads of this process may run on none of the CPUs. What a cpuset leaves
// them only the system knows, so that it is tried, by a thread that ends.
func mayRunOn(cpus []int) error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu) // which passes over those that it has no room for
		}
		tried <- unix.SchedSetaffinity(0, &set)
	}()
	return <-tried
}
