package ethernet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Environment variables that choose the interface, as a name or a subnet in CIDR form,
// if Options.Interface is empty: the transport's own, then the bootstrap's.
const (
	EnvInterface          = "MSCCLGO_ETHERNET_INTERFACE"
	envBootstrapInterface = "MSCCLGO_INTERFACE"
)

// maxAddresses is how many addresses an endpoint may have.
const maxAddresses = 8

// nic is what choose needs to know of a network interface.
type nic struct {
	name     string
	flags    net.Flags
	addrs    []net.IP
	bridge   bool
	physical bool // there is a device behind it, perhaps below others, as below a bond or a VLAN
	speed    int  // Mbit/s; 0: unknown
}

// containerBridges are prefixes of the names of bridges that container runtimes and
// hypervisors make. They have the same addresses on every host.
var containerBridges = []string{"docker", "br-", "virbr", "cni", "podman", "lxcbr", "lxdbr", "flannel", "nerdctl", "kube-", "vmnet"}

// nics lists the machine's interfaces.
func nics() ([]nic, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var found []nic
	for _, ifc := range all {
		addrs, err := ifc.Addrs()
		if err != nil {
			continue // it has gone meanwhile
		}
		n := nic{name: ifc.Name, flags: ifc.Flags}
		for _, a := range addrs {
			if a, ok := a.(*net.IPNet); ok && !a.IP.IsLinkLocalUnicast() {
				n.addrs = append(n.addrs, a.IP)
			}
		}
		dir := filepath.Join(sysNet, ifc.Name)
		_, noBridge := os.Stat(filepath.Join(dir, "bridge"))
		n.bridge, n.physical = noBridge == nil, hasDevice(sysNet, ifc.Name, maxLayers)
		if text, err := os.ReadFile(filepath.Join(dir, "speed")); err == nil {
			n.speed, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		found = append(found, n)
	}
	return found, nil
}

// sysNet is where the system describes its interfaces.
const sysNet = "/sys/class/net"

// maxLayers bounds how many interfaces lie on each other, as VLANs of a bond.
const maxLayers = 8

// hasDevice reports whether there is a device behind an interface, or behind one that it lies on. sys
// has a folder for each interface.
func hasDevice(sys, name string, layers int) bool {
	if _, err := os.Stat(filepath.Join(sys, name, "device")); err == nil {
		return true
	}
	const lower = "lower_"
	entries, _ := os.ReadDir(filepath.Join(sys, name))
	return layers > 0 && slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		below, ok := strings.CutPrefix(e.Name(), lower)
		return ok && hasDevice(sys, below, layers-1)
	})
}

// choose returns the addresses to listen on: the addresses of the named interface, or
// inside the subnet. For "" they are the best interface's; the fallback if there is
// none, and loopback addresses if there is no fallback either. IPv4 comes first.
func choose(all []nic, want string, fallback net.IP) ([]net.IP, error) {
	var found []net.IP
	switch _, subnet, err := net.ParseCIDR(want); {
	case want == "":
		if found = best(all); len(found) == 0 && useful(fallback) {
			found = []net.IP{fallback}
		}
		if len(found) == 0 {
			found = loopbacks(all)
		}
	case err == nil:
		for _, n := range all {
			for _, ip := range n.addrs {
				if n.up() && subnet.Contains(ip) {
					found = append(found, ip)
				}
			}
		}
	default:
		i := slices.IndexFunc(all, func(n nic) bool { return n.name == want })
		if i < 0 {
			return nil, fmt.Errorf("%q is neither an interface of this machine nor a subnet such as 10.0.0.0/8", want)
		}
		if !all[i].up() {
			return nil, fmt.Errorf("interface %s is down", want)
		}
		found = all[i].addrs
	}
	switch {
	case len(found) == 0 && want == "":
		return nil, errors.New("no interface that is up has an address that peers could use")
	case len(found) == 0:
		return nil, fmt.Errorf("no interface that is up has an address of %q", want)
	}
	found = slices.Clone(found)
	slices.SortStableFunc(found, func(a, b net.IP) int { return cmp.Compare(len(b.To4()), len(a.To4())) })
	return found[:min(len(found), maxAddresses)], nil
}

// useful reports whether a fallback may lead other hosts here.
func useful(ip net.IP) bool {
	return ip != nil && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast()
}

// loopbacks returns the addresses of the loopback interface.
func loopbacks(all []nic) (found []net.IP) {
	for _, n := range all {
		if n.up() && n.flags&net.FlagLoopback != 0 {
			found = append(found, n.addrs...)
		}
	}
	return found
}

// best returns the addresses of the interface to use by default: one that is up and
// neither loopback nor a container bridge, preferably with a device behind it, then
// the fastest, then the first.
func best(all []nic) []net.IP {
	usable := slices.DeleteFunc(slices.Clone(all), func(n nic) bool {
		return !n.up() || len(n.addrs) == 0 || n.flags&net.FlagLoopback != 0 || n.containerBridge()
	})
	if len(usable) == 0 {
		return nil
	}
	return slices.MaxFunc(usable, func(a, b nic) int {
		if a.physical != b.physical {
			if a.physical {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.speed, b.speed)
	}).addrs
}

// up reports whether the interface is up and has a link.
func (n nic) up() bool {
	const both = net.FlagUp | net.FlagRunning
	return n.flags&both == both
}

func (n nic) containerBridge() bool {
	return n.bridge || slices.ContainsFunc(containerBridges, func(prefix string) bool { return strings.HasPrefix(n.name, prefix) })
}
