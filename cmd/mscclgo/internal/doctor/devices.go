package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/gpu"
)

// nvidia is the vendor's number on PCI.
const nvidia = "0x10de"

// pciGPUs counts NVIDIA's display controllers on PCI, which are there with no driver too.
func (e *examination) pciGPUs() (n int) {
	folders, _ := fs.Glob(e.Root, "sys/bus/pci/devices/*")
	for _, folder := range folders {
		if e.read(folder+"/vendor") == nvidia && strings.HasPrefix(e.read(folder+"/class"), "0x03") {
			n++
		}
	}
	return n
}

// cuda finds out whether GPUs can be used.
func (e *examination) cuda() Finding {
	gpus, onPCI, module := e.gpus(), e.pciGPUs(), e.exists("/proc/driver/nvidia/version")
	switch {
	case len(gpus) > 0:
		text := fmt.Sprintf("driver %s, %s", gpus[0].DriverVersion, show.Count(len(gpus), "GPU"))
		for _, g := range gpus {
			text += fmt.Sprintf("\n%s: %s, %s, %s, PCI %s", g.Name, g.Model, g.Arch, sizeText(g.TotalMemory), g.PCIBusID)
		}
		if hidden := onPCI - len(gpus); hidden > 0 {
			return warning("unset CUDA_VISIBLE_DEVICES, if that is not what you want", "%s\n%d more on PCI cannot be used by this process: CUDA_VISIBLE_DEVICES is %q", text, hidden, e.env("CUDA_VISIBLE_DEVICES"))
		}
		return ok("%s", text)
	case e.deviceErr != nil:
		return failed("nvidia-smi  # does the driver's own tool work? after an update of the driver, reboot", "%v", e.deviceErr)
	case onPCI == 0 && !module:
		return absent("no NVIDIA GPU; emulated devices are all there is")
	case !module:
		return failed("install NVIDIA's driver, or load its module: modprobe nvidia", "%s on PCI, and the driver's kernel module is not loaded", show.Count(onPCI, "NVIDIA GPU"))
	case e.set("CUDA_VISIBLE_DEVICES"):
		return failed("unset CUDA_VISIBLE_DEVICES", "the driver is loaded, and CUDA_VISIBLE_DEVICES=%q leaves no GPU", e.env("CUDA_VISIBLE_DEVICES"))
	case e.contained() != "":
		return failed("start the container with GPUs, such as docker run --gpus all, by NVIDIA's Container Toolkit", "the driver is loaded on the host, and this container has no GPU")
	}
	return failed("install the driver's library libcuda.so.1; look at LD_LIBRARY_PATH", "the driver's kernel module is loaded, and CUDA finds no GPU")
}

// peerAccess finds out which GPUs reach each other's memory.
func (e *examination) peerAccess() Finding {
	gpus := e.gpus()
	if len(gpus) < 2 {
		return absent("fewer than two GPUs")
	}
	var without []string
	routes := map[string]int{}
	for i, a := range gpus {
		d, err := gpu.Open(a.Name)
		if err != nil {
			return failed("nvidia-smi  # is another process using the GPU exclusively, or is it out of memory?", "%v", err)
		}
		for j, b := range gpus {
			if i == j {
				continue
			}
			if !d.CanAccess(b.UUID) {
				without = append(without, fmt.Sprintf("%s to %s", a.Name, b.Name))
			} else if r, err := e.machine.LinkBetween(a.PCIBusID, b.PCIBusID); err == nil {
				routes[r.String()]++
			}
		}
		if err := d.Close(); err != nil {
			return failed("", "%v", err)
		}
	}
	if len(without) > 0 {
		return warning("nvidia-smi topo -p2p r  # on PCIe, turn off the IOMMU or ACS in the firmware; ranks on these GPUs pass data through shared memory of the host",
			"no access: %s", strings.Join(without, ", "))
	}
	var over []string
	for _, r := range slices.Sorted(maps.Keys(routes)) {
		over = append(over, fmt.Sprintf("%d by %s", routes[r]/2, r))
	}
	return ok("every pair of %d GPUs, both ways: %s", len(gpus), strings.Join(over, ", "))
}

// ranks finds out whether ranks on this machine find and reach each other.
func (e *examination) ranks() Finding {
	n, device := 2, "emu"
	if gpus := e.gpus(); len(gpus) > 0 {
		n, device = max(2, len(gpus)), "cuda"
	}
	f, err := e.Ranks(e.ctx, n, device)
	if err != nil {
		return failed("look at the findings above, and at the error, which names what failed", "%d ranks on %s devices: %v", n, device, err)
	}
	return f
}
