package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/topology"
)

// network looks for addresses at which ranks of other hosts reach this one.
func (e *examination) network() Finding {
	interfaces, err := net.Interfaces()
	if err != nil {
		return failed("", "%v", err)
	}
	var found []string
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return failed("", "%s: %v", i.Name, err)
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				found = append(found, i.Name+" "+n.IP.String())
			}
		}
	}
	if len(found) == 0 {
		return absent("no address but loopback: groups are of this machine alone")
	}
	return ok("ranks of other hosts may reach this one at %s\nMSCCLGO_INTERFACE chooses among them", strings.Join(found, ", "))
}

// rdma returns the machine's RDMA devices, as sysfs has them.
func (e *examination) rdma() (nics []topology.NIC) {
	for _, n := range e.machine.NICs {
		if n.Kind != topology.Ethernet {
			nics = append(nics, n)
		}
	}
	return nics
}

// infiniBand opens each RDMA device.
func (e *examination) infiniBand() Finding {
	nics := e.rdma()
	if len(nics) == 0 {
		return absent("no RDMA device; hosts are connected by Ethernet")
	}
	names, err := verbs.Devices()
	if err != nil {
		return failed("apt-get install libibverbs1 ibverbs-providers  # in a container also --device /dev/infiniband", "%s, and %v", show.Count(len(nics), "RDMA device"), err)
	}
	f := ok("%s", show.Count(len(names), "RDMA device"))
	active := 0
	for _, name := range names {
		text, usable, err := e.rdmaDevice(name)
		if err != nil {
			f.State, f.Mend = Failed, "chmod or chgrp /dev/infiniband/uverbs*; docker run --device /dev/infiniband --cap-add IPC_LOCK"
			text = err.Error()
		}
		if usable {
			active++
		}
		f.Text += fmt.Sprintf("\n%s: %s", name, text)
	}
	if active == 0 && f.State == OK {
		f.State, f.Mend = Warning, "ibstat; rdma link  # cable, subnet manager, ip link set NAME up, ip addr add ADDRESS/24 dev NAME"
	}
	return f
}

// rdmaDevice describes an RDMA device, and reports whether a port of it can be used.
func (e *examination) rdmaDevice(name string) (text string, usable bool, err error) {
	c, err := verbs.Open(name)
	if err != nil {
		return "", false, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	a, err := c.Attributes()
	if err != nil {
		return "", false, err
	}
	var parts []string
	for n := 1; n <= a.Ports; n++ {
		p, err := c.Port(n)
		if err != nil {
			return "", false, err
		}
		part := fmt.Sprintf("port %d ", n)
		switch {
		case !p.Active:
			part += "is down"
		case p.InfiniBand:
			part += fmt.Sprintf("InfiniBand, LID %d", p.LID)
			usable = true
		default:
			gid, ok, err := e.roce(name, n)
			if err != nil {
				return "", false, err
			}
			part += gid
			usable = usable || ok
		}
		if p.Active {
			part += fmt.Sprintf(", MTU %d", p.MTU)
		}
		parts = append(parts, part)
	}
	if !a.Atomics {
		parts = append(parts, "no atomics: updates are messages")
	}
	return strings.Join(parts, ", "), usable, nil
}

// roce describes the GID of an Ethernet port, and reports whether there is one.
func (e *examination) roce(device string, port int) (text string, ok bool, err error) {
	sys, err := fs.Sub(e.Root, "sys")
	if err != nil {
		return "", false, err
	}
	gids, err := verbs.GIDs(sys, device, port)
	if err != nil {
		return "", false, err
	}
	if best, ok := verbs.BestGID(gids); ok {
		return fmt.Sprintf("RoCE v2, GID %d %v", best.Index, net.IP(best.Address[:])), true, nil
	}
	link := "NAME"
	for _, n := range e.machine.NICs {
		if n.Name == device && len(n.Interfaces) == 1 { // of several, nothing tells which is the port's
			link = n.Interfaces[0]
		}
	}
	return "Ethernet, with no GID of RoCE v2: give its interface an address with ip addr add ADDRESS/24 dev " + link, false, nil
}

// gpuDirect finds out whether RDMA devices can access memory of GPUs.
func (e *examination) gpuDirect() Finding {
	gpus := e.gpus()
	if len(gpus) == 0 || len(e.rdma()) == 0 {
		return absent("it takes a GPU and an RDMA device")
	}
	err := exportsDMABuf(gpus[0].Name)
	switch {
	case !gpus[0].RDMAOrdered:
		return warning("", "kernels of %s do not see the writes of RDMA devices in their order, so that ranks use other transports", gpus[0].Name)
	case err == nil:
		return ok("GPUs export their memory to RDMA devices as dma-buf")
	case e.exists("/sys/module/nvidia_peermem"):
		return ok("by the module nvidia_peermem; dma-buf: %v", err)
	case errors.Is(err, mscclgo.ErrUnsupported):
		return warning("modprobe nvidia-peermem  # or the open kernel modules of the driver, with Linux 5.12", "%v", err)
	}
	return failed("", "%v", err)
}

func exportsDMABuf(device string) (err error) {
	d, err := gpu.Open(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	b, err := d.Alloc(1 << 16)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	file, _, err := b.Internal().DMABuf()
	if err != nil {
		return err
	}
	return file.Close()
}
