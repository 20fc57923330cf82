package communicator

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

const matchOp = "communicator: match a call"

// matcher has this rank's calls, and exchanges with other hosts what ranks tell of themselves.
type matcher struct {
	*watch.Calls
	c     *Communicator
	board *sharedBoard
	stop  func() // ends the exchange with other hosts; nil if there is none
}

// MatchCall numbers a call that all ranks make in the same order, such as a
// collective on a stream, and compares its description with the other ranks'
// without waiting for them. A difference is detected by the rank that makes the call
// later: at once among the ranks of a host, otherwise within a second or in the next
// collective method. That rank fails the group, so that waits in kernels end. Where all
// other ranks of the host agree, the one that differs is named as the one that failed.
//
// All of the description is compared; the error shows its first 120 bytes. MatchCall
// does not allocate and takes about 100 ns.
//
// Errors: ErrInvalid, naming the call's number, the ranks and both descriptions, when
// they differ; ErrInvalid for a closed communicator; the group's error if it has
// failed.
func (c *Communicator) MatchCall(description string) error {
	if c.failure.failed.Load() {
		return c.failure.err()
	}
	err, open := c.matcher.Make(matchOp, description)
	if !open {
		return c.usable(matchOp)
	}
	if err != nil {
		c.failure.failBy(c.matcher.Odd(), err)
	}
	return err
}

// lastCall returns this rank's last call.
func (c *Communicator) lastCall() watch.Call {
	if m := c.begun.Load(); m != nil {
		return m.Last()
	}
	return watch.Call{}
}

// close ends the exchange with other hosts and closes the board. It is called after Refuse.
func (m *matcher) close() error {
	if m.stop != nil {
		m.stop()
	}
	m.c.failure.observer.leave()
	if m.board == nil {
		return nil
	}
	if m.Calls != nil { // it was started
		m.Calls.Close()
	}
	return m.board.close()
}

// compareInterval is how often the leaders of hosts exchange what they know, unless a rank asks for more.
const compareInterval = 250 * time.Millisecond

// goodbyePatience bounds how long a leader tells others that it leaves.
const goodbyePatience = 200 * time.Millisecond

// start begins to observe the group, and to compare this host's calls with those of
// other hosts: the leader of each, its lowest rank, exchanges its host's pulses with the first leader, which passes
// them on. Only these messages have the tag. owners are the leaders of all ranks.
func (m *matcher) start(members, owners []int, tag uint64) {
	m.Calls = watch.NewCalls(m.c.Rank(), members, m.board.Board)
	m.c.begun.Store(m)
	leaders := slices.Compact(slices.Sorted(slices.Values(owners)))
	var peers []int
	switch i := slices.Index(leaders, m.c.Rank()); {
	case i == 0:
		peers = leaders[1:]
	case i > 0:
		peers = leaders[:1]
	}
	m.c.failure.observer.join(m.board.Board, owners, peers)
	if len(peers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, peer := range peers {
		// Each on its own, since a peer that is stopped may hold a Send up.
		wg.Go(func() { m.send(ctx, peer, tag) })
		wg.Go(func() { m.listen(ctx, peer, tag) })
	}
	m.stop = func() {
		cancel()
		wg.Wait()
	}
}

// send sends what this rank observes to a peer. An error of it means that the peer has left, or failed, which the
// bootstrap reports.
func (m *matcher) send(ctx context.Context, peer int, tag uint64) {
	observer := m.c.failure.observer
	turns := make([]uint64, m.c.Size())
	for {
		interval, asked := observer.next()
		tick := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			tick.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), goodbyePatience)
			defer cancel()
			_ = m.c.boot.Send(ctx, peer, tag, exchangeWire.Marshal(&exchange{leaves: true}))
			return
		case <-m.c.boot.Done():
			tick.Stop()
			return
		case <-asked:
			tick.Stop()
		case <-tick.C:
		}
		e := exchange{questions: observer.questions(), pulses: observer.relay(peer, turns)}
		_ = m.c.boot.Send(ctx, peer, tag, exchangeWire.Marshal(&e))
	}
}

// listen notes what a peer observes, and compares its calls, until the peer leaves.
func (m *matcher) listen(ctx context.Context, peer int, tag uint64) {
	defer m.c.failure.observer.forget(peer)
	for {
		b, err := m.c.boot.Recv(ctx, peer, tag)
		if err != nil {
			return
		}
		e, err := exchangeWire.Unmarshal(b)
		var last watch.Call
		if err == nil {
			last, err = m.c.failure.observer.hear(peer, e.pulses, e.questions)
		}
		if err != nil {
			err = mscclgo.Errorf(mscclgo.ErrRemote, matchOp, "its message is malformed: %w", err).At(m.c.Rank(), peer)
		} else {
			err = m.Hear(matchOp, last)
		}
		if err != nil {
			m.c.failure.fail(err)
			return
		}
		if e.leaves {
			return
		}
	}
}

// exchange is what leaders send each other.
type exchange struct {
	leaves    bool   // it is the last
	questions uint64 // see observer.ask
	pulses    []pulse
}

// pulse is what a leader tells of a rank.
type pulse struct {
	rank   int
	beat   uint64
	status []byte `wire:"3200"` // of watch.MaxBytes at most; nil if it is the same as before
}

var exchangeWire = wire.For[exchange]()
