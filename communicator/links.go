package communicator

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// carrier is a transport to ranks whose memory is not mapped here.
type carrier struct {
	transport registeredmem.Transports
	endpoint  func() (connection.Endpoint, error)
	close     func() error
}

// carriers are what can be set up, the better ones first.
var carriers = []struct {
	transport registeredmem.Transports
	open      func(*Communicator) (carrier, error)
	named     func(*Communicator) bool // the user named a device of it
}{
	{registeredmem.InfiniBand, openInfiniBand, func(c *Communicator) bool {
		return c.options.InfiniBand.Device != "" || os.Getenv(ib.EnvDevice) != ""
	}},
	{registeredmem.Ethernet, openEthernet, func(c *Communicator) bool {
		return c.options.Ethernet.Interface != "" || os.Getenv(ethernet.EnvInterface) != ""
	}},
}

func openInfiniBand(c *Communicator) (carrier, error) {
	o := c.options.InfiniBand
	if o.Logger == nil {
		o.Logger = c.options.Logger
	}
	t, err := ib.New(c.registry, o)
	if err != nil {
		return carrier{}, err
	}
	return carrier{
		transport: registeredmem.InfiniBand,
		endpoint:  func() (connection.Endpoint, error) { return t.NewEndpoint() },
		close:     t.Close,
	}, nil
}

func openEthernet(c *Communicator) (carrier, error) {
	o := c.options.Ethernet
	o.Secret = c.boot.Key("ethernet")
	if o.Logger == nil {
		o.Logger = c.options.Logger
	}
	if o.Timeout == 0 {
		o.Timeout = c.options.Timeout
	}
	t, err := ethernet.New(c.registry, o)
	if err != nil {
		return carrier{}, err
	}
	return carrier{
		transport: registeredmem.Ethernet,
		endpoint:  func() (connection.Endpoint, error) { return t.NewEndpoint() },
		close:     t.Close,
	}, nil
}

// link decides over what each peer is reached. Where all ranks map each other's
// memory, nothing but that is set up.
func (c *Communicator) link(ctx context.Context, k *call, maps [][]byte) error {
	c.links = make([]registeredmem.Transports, c.Size())
	for rank, both := range maps[c.Rank()] {
		if both != 0 {
			c.links[rank] = registeredmem.CudaIPC
		}
	}
	if len(c.hosts) == 1 {
		return nil
	}
	mine, err := c.openCarriers()
	all, err := k.collect(ctx, mine.encode(), err)
	if err != nil {
		return err
	}
	for rank, b := range all {
		theirs, err := decodeCarried(b)
		if err != nil {
			return k.errorf(mscclgo.ErrRemote, rank, "what carries its data is malformed: %w", err)
		}
		for _, one := range carriers {
			if c.links[rank] == 0 && mine.transports.Has(one.transport) && theirs.transports.Has(one.transport) {
				c.links[rank] = one.transport
			}
		}
		if c.links[rank] == 0 {
			return k.errorf(mscclgo.ErrUnsupported, rank,
				"no transport leads there: its memory cannot be mapped, this rank has %v, that one has %v%s%s", mine.transports, theirs.transports, mine.why, theirs.why)
		}
	}
	return nil
}

// carried is which transports a rank has set up, and why not the others.
type carried struct {
	transports registeredmem.Transports
	why        string
}

func (h *carried) encode() []byte {
	w := wire.NewWriter(64)
	w.U32(uint32(h.transports))
	w.String(h.why[:min(len(h.why), maxReason)])
	return w.Bytes()
}

func decodeCarried(b []byte) (h carried, err error) {
	r := wire.NewReader(b)
	h.transports = registeredmem.Transports(r.U32())
	h.why = r.String(maxReason)
	return h, r.End()
}

// openCarriers sets up all transports that are allowed and can be had. What the user
// named and is not there is an error.
func (c *Communicator) openCarriers() (carried, error) {
	var h carried
	for _, one := range carriers {
		if !c.options.Transports.Has(one.transport) {
			continue
		}
		opened, err := one.open(c)
		if errors.Is(err, mscclgo.ErrInvalid) || err != nil && one.named(c) {
			return h, err
		}
		if err != nil {
			h.why += fmt.Sprintf("; rank %d has no %v: %v", c.Rank(), one.transport, err)
			c.options.Logger.Info("a transport is left out", "rank", c.Rank(), "transport", one.transport, "error", err)
			continue
		}
		c.carriers = append(c.carriers, opened)
		h.transports |= one.transport
	}
	return h, nil
}

// closeCarriers closes what openCarriers set up.
func (c *Communicator) closeCarriers() error {
	var errs []error
	for i := len(c.carriers) - 1; i >= 0; i-- {
		errs = append(errs, c.carriers[i].close())
	}
	return errors.Join(errs...)
}

// endpoint gives one for a connection to a peer.
func (c *Communicator) endpoint(peer int) (connection.Endpoint, error) {
	for _, one := range c.carriers {
		if c.links[peer] == one.transport {
			return one.endpoint()
		}
	}
	return cudaipc.NewEndpoint(c.registry)
}

// Transport gives the transport over which this rank's port channels and
// connections reach a peer: CudaIPC where both map each other's memory, itself
// included, and else the first of InfiniBand and Ethernet that both have.
//
// Errors: ErrInvalid for a peer that is none.
func (c *Communicator) Transport(peer int) (registeredmem.Transports, error) {
	if peer < 0 || peer >= c.Size() {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: tell the transport", "rank %d is outside a group of %d", peer, c.Size()).At(c.Rank(), mscclgo.NoRank)
	}
	return c.links[peer], nil
}
