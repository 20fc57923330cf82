package ib

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"golang.org/x/sys/unix"
)

// nic is an open device.
type nic struct {
	name    string
	index   int  // among the transport's
	extra   bool // nobody named it, and it is not the first
	ctx     *verbs.Context
	pd      *verbs.PD
	channel *verbs.Channel // of the queues that receive messages
	wake    int            // an eventfd: ends watch
	watched sync.WaitGroup

	attributes verbs.Attributes
	state      verbs.Port
	port       int
	gidIndex   int
	gid        [16]byte

	mu    sync.Mutex // held while messages are applied
	conns map[*conn]struct{}
}

// openNIC opens a device. sysfs has the GID tables.
func openNIC(name string, index int, o Options, sysfs fs.FS) (_ *nic, err error) {
	n := &nic{name: name, index: index, wake: -1, conns: map[*conn]struct{}{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.ctx, err = verbs.Open(name); err != nil {
		return nil, err
	}
	if n.attributes, err = n.ctx.Attributes(); err != nil {
		return nil, err
	}
	if err := n.choosePort(o); err != nil {
		return nil, err
	}
	if err := n.chooseGID(o, sysfs); err != nil {
		return nil, err
	}
	if n.pd, err = n.ctx.NewPD(); err != nil {
		return nil, err
	}
	if n.channel, err = n.ctx.NewChannel(); err != nil {
		return nil, err
	}
	if n.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "ib: open "+name, "no eventfd: %w", err)
	}
	return n, nil
}

func (n *nic) choosePort(o Options) error {
	op := "ib: open " + n.name
	if o.Port > n.attributes.Ports {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it has no port %d, only %d", o.Port, n.attributes.Ports)
	}
	first, last := o.Port, o.Port
	if o.Port == 0 {
		first, last = 1, n.attributes.Ports
	}
	var err error
	for n.port = first; n.port <= last; n.port++ {
		if n.state, err = n.ctx.Port(n.port); err != nil {
			return err
		}
		if n.state.Active {
			break
		}
	}
	switch {
	case !n.state.Active:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "no port that may be used is active (of %d to %d): check the cable and that its network interface is up", first, last)
	case o.MTU > n.state.MTU:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "an MTU of %d is asked for, port %d has %d", o.MTU, n.port, n.state.MTU)
	case o.MTU > 0:
		n.state.MTU = o.MTU
	}
	return nil
}

// chooseGID chooses the entry of the port's GID table by which peers address it.
func (n *nic) chooseGID(o Options, sysfs fs.FS) (err error) {
	op := fmt.Sprintf("ib: find the address of port %d of %s", n.port, n.name)
	switch {
	case o.GIDIndex > 0:
		n.gidIndex = o.GIDIndex
	case o.GIDIndex == 0 && !n.state.InfiniBand:
		gids, err := verbs.GIDs(sysfs, n.name, n.port)
		if err != nil {
			return mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
		}
		best, ok := verbs.BestGID(gids)
		if !ok {
			return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "none of its %d GIDs is of RoCE v2; give the network interface an IP address, or set GIDIndex", len(gids))
		}
		n.gidIndex = best.Index
	}
	if n.gid, err = n.ctx.GID(n.port, n.gidIndex); err != nil || n.gid == [16]byte{} {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no GID with index %d; see ibv_devinfo -v", n.gidIndex)
	}
	return nil
}

// mtu returns the port's MTU as queue pairs encode it.
func (n *nic) mtu() uint8 { return uint8(bits.Len(uint(n.state.MTU)) - 8) }

// allows returns what peers may do.
func (n *nic) allows() verbs.Access {
	access := verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead
	if n.attributes.Atomics {
		access |= verbs.RemoteAtomic
	}
	return access
}

func (n *nic) close() error {
	var errs []error
	if n.wake >= 0 {
		var one [8]byte
		one[0] = 1
		unix.Write(n.wake, one[:])
		n.watched.Wait()
		errs = append(errs, unix.Close(n.wake))
	}
	if n.channel != nil {
		errs = append(errs, n.channel.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	if n.ctx != nil {
		errs = append(errs, n.ctx.Close())
	}
	return errors.Join(errs...)
}

// sys returns sysfs.
func sys() fs.FS { return os.DirFS("/sys") }
