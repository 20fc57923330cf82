package bootstrap

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
)

func TestVisible(t *testing.T) {
	all := []string{"10.9.9.9", "10.8.8.8"}
	for _, c := range []struct {
		ip, host, want string
		anywhere       bool
	}{
		{"127.0.0.1", "127.0.0.1", "127.0.0.1", false},
		{"127.0.0.1", "localhost", "127.0.0.1", false},
		{"::1", "::1", "::1", false},
		{"10.1.2.3", "node-1", "10.1.2.3", false},
		{"127.0.0.1", "node-1", all[0], true}, // node-1 is 127.0.1.1 in its own /etc/hosts
	} {
		if got, anywhere := visible(net.ParseIP(c.ip), c.host, all); got.String() != c.want || anywhere != c.anywhere {
			t.Errorf("%s towards %s: %v, %v, want %s, %v", c.ip, c.host, got, anywhere, c.want, c.anywhere)
		}
	}
}

// between is a connection between two addresses.
type between struct {
	net.Conn
	local, remote string
}

func (c between) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.ParseIP(c.local), Port: 1} }
func (c between) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.remote), Port: 2} }

// A rank on the machine of the rendezvous that has found no address but the loopback
// one is reached by other machines where they have reached the rendezvous.
func TestLoopbackIsOfferedToNoOtherMachine(t *testing.T) {
	join := func(rank int, local, remote, addr string) *member {
		return &member{conn: newConn(between{nil, local, remote}, new(sync.Mutex), nil, false), rank: rank, join: joinMessage{addr: addr}}
	}
	for what, c := range map[string]struct {
		members []*member
		want    []string
	}{
		"one machine": {
			[]*member{join(0, "127.0.0.1", "127.0.0.1", "127.0.0.1:1"), join(1, "::1", "::1", "[::1]:2"), join(2, "10.0.0.1", "10.0.0.1", "10.0.0.1:3")},
			[]string{"127.0.0.1:1", "[::1]:2", "10.0.0.1:3"},
		},
		"two machines": {
			[]*member{join(0, "127.0.0.1", "127.0.0.1", "127.0.0.1:1"), join(1, "10.0.0.1", "10.0.0.2", "10.0.0.2:2"), join(2, "10.0.0.1", "10.0.0.1", "10.0.0.1:3")},
			[]string{"10.0.0.1:1", "10.0.0.2:2", "10.0.0.1:3"},
		},
		"over IPv6": {
			[]*member{join(0, "::1", "::1", "[::1]:1"), join(1, "fd00::1", "fd00::2", "[fd00::2]:2")},
			[]string{"[fd00::1]:1", "[fd00::2]:2"},
		},
	} {
		r := &Rendezvous{size: len(c.members), members: map[int]*member{}}
		for _, m := range c.members {
			r.members[m.rank] = m
		}
		if diff := cmp.Diff(c.want, r.peerAddrs()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

// A rank that reaches the rendezvous over another interface when it tries again listens
// there, and one that knows only a loopback address listens everywhere.
func TestListenWhereToldToDial(t *testing.T) {
	j := &joiner{o: Options{ID: newID([]string{"node-1.invalid"}, 1, false)}}
	defer func() { j.ln.Close() }()
	for _, local := range []string{"127.0.0.1", "127.0.1.1"} {
		if _, err := j.listen(t.Context(), between{nil, local, "10.0.0.1"}); err != nil {
			t.Fatal(err)
		}
		if at := j.ln.Addr().(*net.TCPAddr).IP; !at.IsUnspecified() {
			t.Errorf("from %s it listens at %v", local, at)
		}
	}
	j.o.ID = newID([]string{"127.0.0.1"}, 1, false)
	_, err := j.listen(t.Context(), between{nil, "127.0.0.1", "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	host, err := j.listen(t.Context(), between{nil, "127.0.0.2", "127.0.0.1"})
	if at := j.ln.Addr().(*net.TCPAddr).IP; err != nil || host != "127.0.0.2" || at.String() != host {
		t.Errorf("it listens at %v and offers %s (%v)", at, host, err)
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
