package bootstrap

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

func TestVisible(t *testing.T) {
	all, err := machineAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ ip, host, want string }{
		{"127.0.0.1", "127.0.0.1", "127.0.0.1"},
		{"127.0.0.1", "localhost", "127.0.0.1"},
		{"::1", "::1", "::1"},
		{"10.1.2.3", "node-1", "10.1.2.3"},
		{"127.0.0.1", "node-1", all[0]}, // node-1 is 127.0.1.1 in its own /etc/hosts
	} {
		if got, err := visible(net.ParseIP(c.ip), c.host); err != nil || got.String() != c.want {
			t.Errorf("%s towards %s: %v, %v, want %s", c.ip, c.host, got, err, c.want)
		}
	}
}

// Rank 0 opens its rendezvous on every address where the id has a name, or an
// address that is not of this machine, and waits for a port that is taken.
func TestHostRendezvous(t *testing.T) {
	noLeaks(t)
	probe := rendezvous(t, quiet)
	probe.Close()
	port := probe.ID().port
	for _, host := range []string{"a-name-of-this-machine.invalid", "192.0.2.1"} { // RFC 5737: nobody's
		r, err := hostRendezvous(testContext(t), newID([]string{host}, port, true), quiet)
		if err != nil {
			t.Fatal(err)
		}
		if ip := r.acc.Addr().(*net.TCPAddr).IP; !ip.IsUnspecified() {
			t.Errorf("%s: it listens at %v alone", host, ip)
		}
		r.Close()
	}
	taken := rendezvous(t, quiet)
	ctx, cancel := context.WithTimeout(testContext(t), 120*time.Millisecond)
	defer cancel()
	_, err := hostRendezvous(ctx, newID([]string{"127.0.0.1"}, taken.ID().port, true), quiet)
	wantError(t, err, mscclgo.ErrTimeout, "port", taken.ID().Addr())
}
