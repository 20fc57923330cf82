package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// machineAddrs returns the addresses of this machine that others may reach, or
// the loopback address if there is none.
func machineAddrs() ([]string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && len(hosts) < maxHosts {
			hosts = append(hosts, n.IP.String())
		}
	}
	if hosts == nil {
		hosts = []string{"127.0.0.1"}
	}
	return hosts, nil
}

// visible returns ip, this machine's address towards host. If ip is a loopback
// address and host is not, because the machine resolves its own name to one, it
// returns the first of all, the addresses that peers can reach, and anywhere: a link may
// come up later, so the rank listens on every address, and the rendezvous knows at which
// it is reached (see [Rendezvous.peerAddrs]).
func visible(ip net.IP, host string, all []string) (seen net.IP, anywhere bool) {
	if !ip.IsLoopback() || isLoopback(host) {
		return ip, false
	}
	return net.ParseIP(all[0]), true
}

// elsewhere returns the address of this machine at which a connection from another
// machine came, or nil if it came from this one.
func elsewhere(nc net.Conn) net.IP {
	local, tcp := nc.LocalAddr().(*net.TCPAddr)
	if !tcp {
		return nil // it is a Carrier's
	}
	if remote := nc.RemoteAddr().(*net.TCPAddr).IP; remote.IsLoopback() || remote.Equal(local.IP) {
		return nil
	}
	return local.IP
}

// interfaceAddr returns an address of the named interface, preferably of the same
// family as like.
func interfaceAddr(name string, like net.IP) (net.IP, error) {
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	addrs, err := ifc.Addrs()
	if err != nil {
		return nil, err
	}
	var found net.IP
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLinkLocalUnicast() {
			continue
		}
		if (n.IP.To4() == nil) == (like.To4() == nil) {
			return n.IP, nil
		}
		found = n.IP
	}
	if found == nil {
		return nil, fmt.Errorf("interface %s has no address", name)
	}
	return found, nil
}

// routeTo returns the address that this machine would use towards addr. It sends
// nothing.
func routeTo(ctx context.Context, addr string) (net.IP, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP, nil
}

// sleep waits for d, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// isLoopback reports whether host stands for the loopback interface.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
