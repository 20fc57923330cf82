package ethernet

import (
	"fmt"
	"net"
	"testing"
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
		got, err := choose(c.from, c.want)
		is := fmt.Sprint(got)
		if err != nil {
			is = err.Error()
		}
		if is != c.is {
			t.Errorf("%q of %d interfaces returned %s, not %s", c.want, len(c.from), is, c.is)
		}
	}
	if found, err := nics(); err != nil || len(found) == 0 {
		t.Errorf("this machine has the interfaces %+v, %v", found, err)
	}
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
