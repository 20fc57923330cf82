package bootstrap

import (
	"net"
	"net/netip"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// Internal is for packages of this module.
func (b *Bootstrap) Internal() inside.Bootstrap[*Rendezvous] { return insideBootstrap{b} }

// Internal is for packages of this module.
func (r *Rendezvous) Internal() inside.Rendezvous { return insideRendezvous{r} }

type (
	insideBootstrap  struct{ *Bootstrap }
	insideRendezvous struct{ *Rendezvous }
)

func (b insideBootstrap) AskDead(dead func(rank int) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = append(b.dead, dead)
}

func (b insideBootstrap) LocalAddr() netip.Addr {
	if b.over != nil {
		return netip.Addr{}
	}
	if at := b.acc.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap(); !at.IsUnspecified() {
		return at
	}
	return netip.Addr{}
}

func (b insideBootstrap) NewRendezvous() (*Rendezvous, error) {
	host := ""
	if addr := b.LocalAddr(); addr.IsValid() {
		host = addr.String()
	}
	return newRendezvous(net.JoinHostPort(host, "0"), b.options.Advertise, b.log)
}
