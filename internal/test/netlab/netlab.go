// Package netlab makes hosts for tests: network namespaces on one machine, each
// with a link to a switch. A process in a namespace takes it for a host of its
// own, and has nothing but the network to reach the others.
//
// It needs root and ip of iproute2. Where they are missing, a test is skipped;
// see [RequireEnv].
package netlab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// RequireEnv is the environment variable that names what a machine must have, so
// that a test which lacks it fails where otherwise it is skipped: [Netns], [Netem]
// and other names that [Lacks] is called with, separated by commas.
const RequireEnv = "MSCCLGO_REQUIRE"

const (
	Netns = "netns" // network namespaces
	Netem = "netem" // links that delay, lose and reorder
)

// Options adjust a lab. The zero value is ready to use.
type Options struct {
	MTU  int  // of all links, in bytes; 0 is 1500
	IPv6 bool // hosts have IPv6 addresses only
	// Whole has no link take several packets as one, so that [Host.Narrow] sees each. TCP reads that when it connects.
	Whole bool
}

// Lab is some hosts and the switch that joins them.
type Lab struct {
	Hosts []*Host

	t       testing.TB
	netns   string // of the switch
	options Options
}

// Host is a network namespace with a loopback device and one link, eth0.
type Host struct {
	Address string // of eth0, without the length of the prefix

	lab   *Lab
	netns string
	port  string // the switch's end of the link
}

// labs numbers the labs of this process.
var labs atomic.Int64

// New makes a lab of that many hosts, which is gone when the test ends. Its links
// are up.
func New(t testing.TB, hosts int, o Options) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		Lacks(t, Netns, "network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		Lacks(t, Netns, "network namespaces need ip (Debian: iproute2)")
	}
	removeStale(t)
	if o.MTU == 0 {
		o.MTU = 1500
	}
	name := fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), labs.Add(1))
	l := &Lab{t: t, netns: name + "-switch", options: o}
	t.Cleanup(l.remove)
	if out, err := exec.Command("ip", "netns", "add", l.netns).CombinedOutput(); err != nil {
		Lacks(t, Netns, "ip makes no network namespace: %s", out)
	}
	l.ip("-n", l.netns, "link", "add", "bridge", "up", "type", "bridge")
	for i := range hosts {
		l.add(fmt.Sprintf("%s-%d", name, i), i)
	}
	l.awaitLinks()
	return l
}

func (l *Lab) add(netns string, i int) {
	l.t.Helper()
	h := &Host{lab: l, netns: netns, port: fmt.Sprintf("port%d", i)}
	address := []string{fmt.Sprintf("10.78.0.%d", i+1), "/24"}
	if l.options.IPv6 {
		// No detection of duplicates, which takes more than a second.
		address = []string{fmt.Sprintf("fd78::%d", i+1), "/64", "nodad"}
	}
	h.Address = address[0]
	l.ip("netns", "add", netns)
	l.Hosts = append(l.Hosts, h)
	mtu := strconv.Itoa(l.options.MTU)
	l.ip("-n", l.netns, "link", "add", h.port, "mtu", mtu, "up", "master", "bridge", "type", "veth",
		"peer", "name", "eth0", "mtu", mtu, "netns", netns)
	h.ip(append([]string{"address", "add", address[0] + address[1], "dev", "eth0"}, address[2:]...)...)
	if l.options.Whole {
		h.ip("link", "set", "dev", "eth0", "gso_max_segs", "1")
	}
	h.ip("link", "set", "lo", "up")
	h.ip("link", "set", "eth0", "up")
}

// awaitLinks waits until the kernel reports all links as running, a moment after they
// are set up.
func (l *Lab) awaitLinks() {
	l.t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		up := 0
		for _, h := range l.Hosts {
			if strings.Contains(h.ip("-oneline", "link", "show", "dev", "eth0"), " state UP ") {
				up++
			}
		}
		if up == len(l.Hosts) {
			return
		}
		if time.Since(start) > 30*time.Second {
			l.t.Fatalf("netlab: after 30 s only %d links of %d are up", up, len(l.Hosts))
		}
	}
}

// Command is exec.CommandContext for a program that runs on the host.
func (h *Host) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.netns, program}, args...)...)
}

// Unplug pulls the cable of the host out of the switch: its link goes down.
func (h *Host) Unplug() {
	h.lab.t.Helper()
	h.lab.ip("-n", h.lab.netns, "link", "set", h.port, "down")
}

// Plug puts the cable back.
func (h *Host) Plug() {
	h.lab.t.Helper()
	h.lab.ip("-n", h.lab.netns, "link", "set", h.port, "up")
}

// Narrow has the switch drop packets to and from the host of more than mtu bytes, as where MTUs differ: the
// host's own, of which its peers know, stays.
func (h *Host) Narrow(mtu int) {
	h.lab.t.Helper()
	h.lab.ip("-n", h.lab.netns, "link", "set", "dev", h.port, "mtu", strconv.Itoa(mtu))
}

// The states of a bridge's port.
const (
	portDisabled   = "0"
	portForwarding = "3"
)

// Mute has the switch drop all that the host sends and is sent. Its link stays up.
func (h *Host) Mute() { h.setPort(portDisabled) }

// Unmute undoes Mute.
func (h *Host) Unmute() { h.setPort(portForwarding) }

func (h *Host) setPort(state string) {
	h.lab.t.Helper()
	out, err := exec.Command("bridge", "-n", h.lab.netns, "link", "set", "dev", h.port, "state", state).CombinedOutput()
	if err != nil {
		h.lab.t.Fatalf("netlab: bridge link set dev %s state %s: %v: %s", h.port, state, err, out)
	}
}

// Impair has the link impair what the host sends, with arguments of tc-netem(8): "delay",
// "2ms", "loss", "1%". The test is skipped where the kernel has no netem.
func (h *Host) Impair(netem ...string) {
	h.lab.t.Helper()
	args := append([]string{"-n", h.netns, "qdisc", "replace", "dev", "eth0", "root", "netem"}, netem...)
	if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
		h.lab.t.Logf("tc %s: %v: %s", strings.Join(args, " "), err, out)
		Lacks(h.lab.t, Netem, "there is no netem here; make test-netem has it in a virtual machine")
	}
}

// ip runs ip in the host's namespace and returns what it prints.
func (h *Host) ip(args ...string) string {
	h.lab.t.Helper()
	return h.lab.ip(append([]string{"-n", h.netns}, args...)...)
}

func (l *Lab) ip(args ...string) string {
	l.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("netlab: ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// remove deletes the namespaces, and with them the links. Processes that are
// still in one keep it, without a link.
func (l *Lab) remove() {
	for _, h := range l.Hosts {
		l.ip("netns", "delete", h.netns)
	}
	exec.Command("ip", "netns", "delete", l.netns).Run() // New may not have made it
}

// prefix of the namespaces' names; the process's number follows.
const prefix = "mscclgo-"

// removeStale deletes what processes left that were killed.
func removeStale(t testing.TB) {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		t.Fatalf("netlab: ip netns list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest, ours := strings.CutPrefix(name, prefix)
		pid, _, _ := strings.Cut(rest, "-")
		if _, err := os.Stat("/proc/" + pid); ours && os.IsNotExist(err) {
			exec.Command("ip", "netns", "delete", name).Run() // another may be at it
		}
	}
}

// Lacks skips the test, or fails it where that thing is required.
func Lacks(t testing.TB, thing, format string, args ...any) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv(RequireEnv), ","), thing) {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
