package communicator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// The leader of each host, its lowest rank, exchanges its host's pulses with the first leader, which passes them on.

// compareInterval is how often the leaders of hosts exchange what they know, unless a rank asks for more.
const compareInterval = 250 * time.Millisecond

// goodbyePatience bounds how long a leader tells others that it leaves.
const goodbyePatience = 200 * time.Millisecond

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

// start begins to observe the group. owners are the leaders of all ranks, and hostRanks the ranks of the host group. Only
// messages of leaders have the tag.
func (o *observer) start(b *watch.Board, owners, hostRanks []int, tag uint64) {
	leaders := slices.Compact(slices.Sorted(slices.Values(owners)))
	var peers []int
	switch i := slices.Index(leaders, o.rank); {
	case i == 0:
		peers = leaders[1:]
	case i > 0:
		peers = leaders[:1]
	}
	o.join(b, owners, hostRanks, peers)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, peer := range peers {
		// Each on its own, since a peer that is stopped may hold a Send up.
		wg.Go(func() { o.send(ctx, peer, tag) })
		wg.Go(func() { o.receive(ctx, peer, tag) })
	}
	o.stop = func() {
		cancel()
		wg.Wait()
	}
}

// send sends what this rank observes to a peer. An error of it means that the peer has left, or failed, which the
// bootstrap reports.
func (o *observer) send(ctx context.Context, peer int, tag uint64) {
	turns := make([]uint64, o.size)
	for {
		interval, asked := o.next()
		tick := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			tick.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), goodbyePatience)
			defer cancel()
			_ = o.boot.Send(ctx, peer, tag, exchangeWire.Marshal(&exchange{leaves: true}))
			return
		case <-o.boot.Done():
			tick.Stop()
			return
		case <-asked:
			tick.Stop()
		case <-tick.C:
		}
		e := o.relay(peer, turns)
		_ = o.boot.Send(ctx, peer, tag, exchangeWire.Marshal(&e))
	}
}

// receive notes what a peer observes, and compares its calls, until the peer leaves.
func (o *observer) receive(ctx context.Context, peer int, tag uint64) {
	defer o.forget(peer)
	for {
		b, err := o.boot.Recv(ctx, peer, tag)
		if err != nil {
			return
		}
		e, err := exchangeWire.Unmarshal(b)
		var last watch.Call
		if err == nil {
			last, err = o.hear(peer, e)
		}
		if err != nil {
			err = mscclgo.Errorf(mscclgo.ErrRemote, matchOp, "its message is malformed: %w", err).At(o.rank, peer)
		} else {
			err = o.calls.Load().Hear(matchOp, last)
		}
		if err != nil {
			o.fail(err)
			return
		}
		if e.leaves {
			return
		}
	}
}

// relay returns what to send to the leader of another host: the pulses of this host's ranks or, from the first leader, of all
// others. turns says which statuses were sent before.
func (o *observer) relay(to int, turns []uint64) (e exchange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return e
	}
	e.questions = o.board.Asked()
	for rank, owner := range o.owners {
		if owner == to || o.rank != o.owners[0] && owner != o.rank {
			continue
		}
		p := pulse{rank: rank, beat: o.board.BeatOf(rank)}
		if turn := o.board.TurnOf(rank); turn != turns[rank] {
			p.status, turns[rank] = o.board.Reported(rank), turn
		}
		e.pulses = append(e.pulses, p)
	}
	return e
}

// hear writes to the board what a leader of another host tells, and returns that leader's last call.
func (o *observer) hear(from int, e exchange) (last watch.Call, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return last, nil
	}
	o.leaders[from] = o.now()
	if e.questions > o.board.Asked() {
		o.board.Ask(e.questions)
		o.hearQuestion()
	}
	for _, p := range e.pulses {
		if p.rank >= len(o.owners) {
			return last, fmt.Errorf("it tells of rank %d", p.rank)
		}
		owner := o.owners[p.rank]
		if owner == o.rank || from != o.owners[0] && owner != from {
			return last, errors.New("it tells of ranks of other hosts")
		}
		o.board.Beat(p.rank, p.beat)
		if len(p.status) > 0 {
			o.board.Report(p.rank, p.status)
		}
	}
	if s := o.board.StatusOf(from); s != nil {
		last = watch.Call{Rank: from, Number: s.Call, Digest: s.CallDigest, Text: s.CallText}
	}
	return last, nil
}

// forget ends the observation of a leader of another host that leaves.
func (o *observer) forget(leader int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.leaders, leader)
}
