package ethernet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

func TestChoose(t *testing.T) {
	const up = net.FlagUp | net.FlagRunning
	ips := func(text ...string) (all []net.IP) {
		for _, one := range text {
			all = append(all, net.ParseIP(one))
		}
		return all
	}
	all := []nic{
		{name: "lo", flags: up | net.FlagLoopback, addrs: ips("127.0.0.1", "::1")},
		{name: "docker0", flags: up, addrs: ips("172.17.0.1")},
		{name: "custom", flags: up, addrs: ips("172.18.0.1"), bridge: true, speed: 400000},
		{name: "down0", flags: net.FlagUp, addrs: ips("10.9.0.1"), physical: true, speed: 400000},
		{name: "veth0", flags: up, addrs: ips("10.1.0.1"), speed: 10000},
		{name: "eth0", flags: up, addrs: ips("fd00::2", "10.2.0.1"), physical: true, speed: 1000},
		{name: "eth1", flags: up, addrs: ips("10.3.0.1"), physical: true, speed: 100000},
		{name: "bare", flags: up, physical: true, speed: 400000},
	}
	for _, c := range []struct {
		from []nic
		want string
		is   string
	}{
		{all, "", "[10.3.0.1]"},
		{all[:6], "", "[10.2.0.1 fd00::2]"},
		{all[:5], "", "[10.1.0.1]"},
		{all[:4], "", "[127.0.0.1 ::1]"},
		{all, "docker0", "[172.17.0.1]"},
		{all, "10.0.0.0/8", "[10.1.0.1 10.2.0.1 10.3.0.1]"},
		{all, "fd00::/8", "[fd00::2]"},
		{all, "down0", "interface down0 is down"},
		{all, "10.9.0.0/16", `no interface that is up has an address of "10.9.0.0/16"`},
		{all, "eth7", `"eth7" is neither an interface of this machine nor a subnet such as 10.0.0.0/8`},
		{all, "bare", `no interface that is up has an address of "bare"`},
		{all[1:3], "", "no interface that is up has an address that peers could use"},
	} {
		got, err := choose(c.from, c.want, nil)
		is := fmt.Sprint(got)
		if err != nil {
			is = err.Error()
		}
		if is != c.is {
			t.Errorf("%q of %d interfaces returned %s, not %s", c.want, len(c.from), is, c.is)
		}
	}
	for fallback, is := range map[string]string{
		"192.0.2.1": "[192.0.2.1]", "127.0.0.2": "[127.0.0.1 ::1]", "::": "[127.0.0.1 ::1]", "fe80::1": "[127.0.0.1 ::1]",
	} {
		got, err := choose(all[:4], "", net.ParseIP(fallback))
		if err != nil || fmt.Sprint(got) != is {
			t.Errorf("with the fallback %s it returned %v, %v, not %s", fallback, got, err, is)
		}
		if got, err := choose(all[:5], "", net.ParseIP(fallback)); err != nil || fmt.Sprint(got) != "[10.1.0.1]" {
			t.Errorf("beside an interface the fallback %s gave %v, %v", fallback, got, err)
		}
	}
	if found, err := nics(); err != nil || len(found) == 0 {
		t.Errorf("this machine has the interfaces %+v, %v", found, err)
	}
}

// TestHasDevice has interfaces that lie on others: a bond of NICs, a VLAN of it, and what has no device, by
// which a slow NIC beside a bond would be preferred.
func TestHasDevice(t *testing.T) {
	sys := t.TempDir()
	for _, folder := range []string{
		"eth0/device", "eth1/device", "bond0/lower_eth0", "bond0/lower_eth1", "bond0.5/lower_bond0",
		"veth0/queues", "mv0/lower_veth0", "far0/lower_elsewhere", "a/lower_b", "b/lower_a",
	} {
		testerr.Check(t, os.MkdirAll(filepath.Join(sys, folder), 0o755))
	}
	for name, want := range map[string]bool{
		"eth0": true, "bond0": true, "bond0.5": true, "veth0": false, "mv0": false, "far0": false, "a": false, "absent": false,
	} {
		if got := hasDevice(sys, name, maxLayers); got != want {
			t.Errorf("whether %s has a device: %v", name, got)
		}
	}
}

// A link that comes up after the transport was made is in the endpoints made later, and
// one that goes down for a moment stays.
func TestLinkComesUp(t *testing.T) {
	const up = net.FlagUp | net.FlagRunning
	eth := nic{name: "eth0", addrs: []net.IP{net.ParseIP("127.0.0.2")}, physical: true}
	lo := nic{name: "lo", flags: up | net.FlagLoopback, addrs: []net.IP{net.ParseIP("127.0.0.1")}}
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	b.t.opts.Interface = ""
	offered := func(all ...nic) string {
		t.Helper()
		b.t.nics = func() ([]nic, error) { return all, nil }
		e := testerr.Must(b.t.NewEndpoint())(t)
		t.Cleanup(func() { e.Close() })
		d := testerr.Must(decode(testlink.Marshal(t, e)))(t)
		c := testerr.Must(a.e.connect(t.Context(), testlink.Marshal(t, e)))(t)
		testerr.Report(t, c.Close())
		host, _, _ := net.SplitHostPort(d.addrs[0])
		return fmt.Sprint(len(d.addrs), " ", host)
	}
	testcmp.Equal(t, "before", offered(lo), "1 127.0.0.1")
	testcmp.Equal(t, "while the link is down", offered(lo, eth), "1 127.0.0.1")
	testcmp.Equal(t, "the bandwidth of the loopback interface", b.t.Bandwidth(), 0)
	eth.flags, eth.speed = up, 100_000
	testcmp.Equal(t, "when it is up", offered(lo, eth), "1 127.0.0.2")
	testcmp.Equal(t, "its bandwidth", b.t.Bandwidth(), 12.5)
	testcmp.Equal(t, "without any", offered(), "1 127.0.0.2")
	b.t.opts.Fallback = netip.MustParseAddr("127.0.0.3") // of no use
	testcmp.Equal(t, "with a useless fallback", offered(lo), "1 127.0.0.1")
}

// A rank on another machine does not get loopback addresses. Neither end waits.
func TestLoopbackStaysAtHome(t *testing.T) {
	a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
	b.e.about.machine[0]++
	_, err := a.e.Connect(t.Context(), testlink.Marshal(t, b.e))
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1", "rank 1 has only the loopback addresses [127.0.0.1:", "different hosts", EnvInterface)
	_, err = b.e.Connect(t.Context(), testlink.Marshal(t, a.e))
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 1, peer 0", "rank 1 has only the loopback addresses [127.0.0.1:", "different hosts", EnvInterface)

	// Of several addresses it gets the others.
	b.e.about.addrs = append(b.e.about.addrs, "192.0.2.1:1")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = a.e.Connect(ctx, testlink.Marshal(t, b.e))
	if err == nil || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("it was dialled at its loopback address too: %v", err)
	}

	// Where the machine is not known it may be the same.
	b.e.about.machine, b.e.about.addrs = [idSize]byte{}, b.e.about.addrs[:1]
	c := testerr.Must(a.e.Connect(t.Context(), testlink.Marshal(t, b.e)))(t)
	c.Close()
}

func TestEnvironment(t *testing.T) {
	for _, name := range []string{EnvInterface, envBootstrapInterface} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "lo")
			o := loopback()
			o.Interface = ""
			r := newRank(t, 0, o)
			if host, _, err := net.SplitHostPort(r.t.addrs[0]); err != nil || host != "127.0.0.1" {
				t.Errorf("it listens at %v", r.t.addrs)
			}
		})
	}
}
