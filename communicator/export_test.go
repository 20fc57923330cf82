package communicator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// SetLostPatience has a rank whose connection breaks wait for so long for news of why.
func SetLostPatience(c *Communicator, d time.Duration) { c.patience = d }

// RunRank calls a rank's function as Run does.
var RunRank = runRank

// Within is within.
func Within(c *Communicator, cpus []int) []int { return c.within(cpus) }

// Mute has a rank give no sign of life any more.
func Mute(c *Communicator) {
	o := c.failure.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	o.board = nil
}

// Suspects reports whether a rank suspects another of being silent.
func Suspects(c *Communicator) bool { return c.failure.observer.suspects() }

// MeetOnly does a rank's part of Connect until the peer goes on to the transport, where it then
// waits for this rank's end, until done is called.
func MeetOnly(ctx context.Context, c *Communicator, peer int, tag uint64) (done func() error, err error) {
	endpoint, err := c.endpoint(peer)
	if err != nil {
		return nil, err
	}
	mine, err := endpoint.MarshalBinary()
	if err == nil {
		_, err = newMeeting(c, "Connect", "meet", peer, tag, maxDescription).exchange(ctx, mine, nil)
	}
	return endpoint.Close, err
}

// GiveUp gives a call up that has made something, which is closed by a function, when the ranks may have agreed.
func GiveUp(c *Communicator, close func() error) error { return (&call{c: c}).giveUp(true, nil, close) }

// ArenaBytes returns the bytes of device memory that are in use of a
// communicator's arenas.
func ArenaBytes(c *Communicator) uint64 {
	used := uint64(0)
	for _, a := range []*arena{c.shared, c.private} {
		a.mu.Lock()
		for _, s := range a.slabs {
			used += s.buf.Size()
			for _, f := range s.free {
				used -= f.size
			}
		}
		a.mu.Unlock()
	}
	return used
}

// OpenHalf does a rank's part of Open up to where it would tell the peer that it is done, as the peer has.
func OpenHalf(ctx context.Context, p *Pipes, rank int) error {
	q, m := p.lazy.part(rank), newMeeting(p.sems.c, "Open", openOp(rank), rank, p.lazy.tag, maxContribution)
	mine, err := q.prepare(m.op)
	if err != nil {
		return err
	}
	_, err = m.exchange(ctx, mine, nil)
	for in := (meetingMessage{}); err == nil && !in.ready; {
		in, err = m.receive(ctx)
	}
	return errors.Join(err, q.Close())
}

// FailRegistration has the next registration of the buffer of lazy pipes fail, and returns a count of the
// registrations that do not.
func FailRegistration(p *Pipes, err error) *atomic.Int32 {
	var registered atomic.Int32
	register := p.lazy.register
	p.lazy.register = func(b *gpu.Buffer) (*registeredmem.Memory, error) {
		if failed := err; failed != nil {
			err = nil
			return nil, failed
		}
		registered.Add(1)
		return register(b)
	}
	return &registered
}

// ConnectHalf does a rank's part of Connect up to where it would make the connection, which then fails.
func ConnectHalf(ctx context.Context, c *Communicator, peer int, tag uint64, failed error) error {
	endpoint, err := c.endpoint(peer)
	if err != nil {
		return err
	}
	defer endpoint.Close()
	mine, err := endpoint.MarshalBinary()
	if err != nil {
		return err
	}
	m := newMeeting(c, "Connect", "meet", peer, tag, maxDescription)
	if _, err := m.exchange(ctx, mine, nil); err != nil {
		return err
	}
	return m.part(ctx, func(context.Context) error { return failed })
}

// FailDials has each connection fail that a rank dials, or takes.
func FailDials(c *Communicator, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.networks {
		n := &c.networks[i]
		open := n.endpoint
		n.endpoint = func() (connection.Endpoint, error) {
			e, failed := open()
			return unreachable{e, err}, failed
		}
	}
}

type unreachable struct {
	connection.Endpoint
	err error
}

func (u unreachable) Connect(context.Context, []byte) (*connection.Connection, error) {
	return nil, u.err
}

// To returns the sending end of pipe i, below PerPeer, to a rank of PipeOptions.To, or nil
// if there is none, or it is lazy and not open.
func (p *Pipes) To(i, rank int) *pipe.Pipe { return p.find(i, rank, true) }

// From returns the receiving end of pipe i, below PerPeer, from a rank of PipeOptions.From,
// or nil if there is none, or it is lazy and not open.
func (p *Pipes) From(i, rank int) *pipe.Pipe { return p.find(i, rank, false) }

func (p *Pipes) find(i, rank int, sends bool) *pipe.Pipe {
	if p.lazy != nil {
		one := p.lazy.openedTo(rank)
		if one == nil {
			return nil
		}
		p = one
	}
	for _, e := range p.ends {
		if e.i == i && e.peer == rank && e.sends == sends {
			return e.pipe
		}
	}
	return nil
}

// Channel returns channel i, below PerPeer, to a rank of Ranks, or nil if there is none.
func (m *MemoryChannels) Channel(i, rank int) *channel.MemoryChannel {
	if at, ok := indexOf(m.Ranks, m.sems.perPeer, i, rank); ok {
		return m.channels[at]
	}
	return nil
}

// Channel returns channel i, below PerPeer, to a rank of Ranks, or nil if there is none.
func (p *PortChannels) Channel(i, rank int) *channel.PortChannel {
	if at, ok := indexOf(p.Ranks, p.sems.perPeer, i, rank); ok {
		return p.channels[at]
	}
	return nil
}
