package ethernet

import (
	"net"
	"os"
	"slices"

	"github.com/mscclgo/mscclgo"
)

// listen looks for this machine's addresses, opens a socket on each address without one,
// and returns the addresses with their ports, the best first. If it finds nothing, or nothing
// but loopback any more, it returns what it found before: a link may be down for a
// moment.
func (t *Transport) listen() ([]string, error) {
	t.listenMu.Lock()
	defer t.listenMu.Unlock()
	want := t.opts.Interface
	for _, name := range []string{EnvInterface, envBootstrapInterface} {
		if want == "" {
			want = os.Getenv(name)
		}
	}
	all, err := t.nics()
	if err != nil {
		return t.addrs, t.unlessListening(err)
	}
	ips, err := choose(all, want, net.IP(t.opts.Fallback.Unmap().AsSlice()))
	if err != nil {
		return t.addrs, t.unlessListening(err)
	}
	var addrs []string
	var failed error
	for _, ip := range ips {
		addr := t.listening[ip.String()]
		if addr == "" {
			ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: ip})
			if err != nil {
				failed = mscclgo.Errorf(mscclgo.ErrSystem, "ethernet: listen", "%w", err)
				continue
			}
			addr = ln.Addr().String()
			t.acceptor.Add(ln)
			t.listening[ip.String()] = addr
		}
		addrs = append(addrs, addr)
	}
	switch {
	case len(addrs) == 0:
		return t.addrs, t.unlessListening(failed)
	case len(t.addrs) == 0 || len(routable(addrs)) > 0 || len(routable(t.addrs)) == 0:
		t.addrs, t.bandwidth = addrs, bandwidthOf(all, addrs[0])
	}
	return t.addrs, nil
}

// Bandwidth returns the line rate of the interface that has the address at which peers reach this
// rank first, in GB/s (10^9 bytes per second) each way, or 0 if its driver reports none.
func (t *Transport) Bandwidth() float64 {
	t.listenMu.Lock()
	defer t.listenMu.Unlock()
	return t.bandwidth
}

// bandwidthOf returns the line rate of the interface with an address, in GB/s, or 0 if it is unknown.
func bandwidthOf(all []nic, addr string) float64 {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	i := slices.IndexFunc(all, func(n nic) bool { return slices.ContainsFunc(n.addrs, ip.Equal) })
	if err != nil || i < 0 || all[i].speed <= 0 {
		return 0
	}
	return float64(all[i].speed) / 8000
}

// unlessListening returns err unless there are addresses already. The caller holds
// listenMu.
func (t *Transport) unlessListening(err error) error {
	if len(t.addrs) > 0 {
		t.rank.Log.Warn("ethernet: no address was found, the earlier ones are kept", "addresses", t.addrs, "error", err)
		return nil
	}
	return err
}

// routable returns the addresses that are not of a loopback interface.
func routable(addrs []string) []string {
	return slices.DeleteFunc(slices.Clone(addrs), func(addr string) bool {
		host, _, err := net.SplitHostPort(addr)
		return err != nil || net.ParseIP(host).IsLoopback()
	})
}
