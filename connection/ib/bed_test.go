package ib

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// netdev returns the network interface of a Soft-RoCE device, whose network these tests
// may break. The test is skipped for other devices.
func netdev(t *testing.T, device string) string {
	t.Helper()
	parent, err := os.ReadFile(filepath.Join("/sys/class/infiniband", device, "parent"))
	if err != nil {
		t.Skipf("%s is no Soft-RoCE device, whose link could be taken down", device)
	}
	return strings.TrimSpace(string(parent))
}

func ip(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// unplug takes an interface down, until plug or the end of the test.
func unplug(t *testing.T, dev string) (plug func()) {
	t.Helper()
	// The kernel forgets the routes of an interface that is down.
	routes := ip(t, "-4", "route", "show", "table", "all", "dev", dev)
	ip(t, "link", "set", dev, "down")
	up := false
	plug = func() {
		if up {
			return
		}
		up = true
		ip(t, "link", "set", dev, "up")
		for route := range strings.Lines(routes) {
			if !strings.Contains(route, "proto kernel") { // those come back by themselves
				ip(t, append([]string{"-4", "route", "replace", "dev", dev}, strings.Fields(route)...)...)
			}
		}
	}
	t.Cleanup(plug)
	return plug
}

// setMTU changes an interface's MTU until the end of the test.
func setMTU(t *testing.T, dev, mtu string) {
	t.Helper()
	was := testerr.Must(os.ReadFile(filepath.Join("/sys/class/net", dev, "mtu")))(t)
	ip(t, "link", "set", dev, "mtu", mtu)
	t.Cleanup(func() { ip(t, "link", "set", dev, "mtu", strings.TrimSpace(string(was))) })
}

// objects returns the numbers of verbs objects of the machine's devices, by kind.
func objects(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("rdma", "resource").CombinedOutput()
	if err != nil {
		t.Skipf("rdma (Debian: iproute2) does not count verbs objects: %v: %s", err, out)
	}
	return string(out)
}

// pinned returns how much memory of this process is pinned.
func pinned(t *testing.T) string {
	t.Helper()
	status := testerr.Must(os.ReadFile("/proc/self/status"))(t)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmPin:") {
			return line
		}
	}
	t.Fatal("the kernel does not tell VmPin")
	return ""
}
