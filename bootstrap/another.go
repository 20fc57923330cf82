package bootstrap

import "net"

// Options returns options with which this process can connect to another group of the
// same machines: those of [Connect], without Rank, Size, ID, Timeout and Dead.
func (b *Bootstrap) Options() Options {
	o := b.options
	o.Rank, o.Size, o.ID, o.Timeout, o.Dead = 0, 0, UniqueID{}, 0, nil
	return o
}

// NewRendezvous opens the rendezvous of a new group as the function of that name does, at
// the address at which this rank's peers dial it.
func (b *Bootstrap) NewRendezvous() (*Rendezvous, error) {
	host := ""
	if addr := b.LocalAddr(); addr.IsValid() {
		host = addr.String()
	}
	return newRendezvous(net.JoinHostPort(host, "0"), b.options.Advertise, b.log)
}
