package bootstrap

import "net"

// Options returns the options of [Connect] without Rank, Size, ID and Timeout. With them this
// process can connect to another group of the same machines.
func (b *Bootstrap) Options() Options {
	o := b.options
	o.Rank, o.Size, o.ID, o.Timeout = 0, 0, UniqueID{}, 0
	return o
}

func (b insideBootstrap) NewRendezvous() (*Rendezvous, error) {
	host := ""
	if addr := b.LocalAddr(); addr.IsValid() {
		host = addr.String()
	}
	return newRendezvous(net.JoinHostPort(host, "0"), b.options.Advertise, b.log)
}
