package communicator

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// compareInterval is how often the leaders of hosts exchange their last calls, unless a rank
// asks for more.
const compareInterval = 250 * time.Millisecond

// goodbyePatience bounds how long a leader tells others that it leaves.
const goodbyePatience = 200 * time.Millisecond

// start begins to observe the group, and to compare this host's calls with those of
// other hosts: the leader of each, its lowest rank, exchanges claims and its host's
// pulses with the first leader, which passes pulses on. Only these messages have the
// tag. owners are the leaders of all ranks.
func (m *matcher) start(owners []int, tag uint64) {
	m.next = math.MaxUint64
	m.last.rank = m.c.Rank()
	m.c.begun.Store(m)
	leaders := slices.Compact(slices.Sorted(slices.Values(owners)))
	var peers []int
	switch i := slices.Index(leaders, m.c.Rank()); {
	case i == 0:
		peers = leaders[1:]
	case i > 0:
		peers = leaders[:1]
	}
	m.c.failure.observer.join(m.board.board, owners, peers)
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

// send sends this rank's last call and what it observes to a peer. An error of it means
// that the peer has left, or failed, which the bootstrap reports.
func (m *matcher) send(ctx context.Context, peer int, tag uint64) {
	observer := m.c.failure.observer
	turns := make([]uint64, m.c.Size())
	for {
		interval, asked := observer.next()
		tick := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			tick.Stop()
			last := exchange{claim: m.latest(), leaves: true}
			ctx, cancel := context.WithTimeout(context.Background(), goodbyePatience)
			defer cancel()
			_ = m.c.boot.Send(ctx, peer, tag, last.encode())
			return
		case <-m.c.boot.Done():
			tick.Stop()
			return
		case <-asked:
			tick.Stop()
		case <-tick.C:
		}
		e := exchange{claim: m.latest(), questions: observer.questions(), pulses: observer.relay(peer, turns)}
		_ = m.c.boot.Send(ctx, peer, tag, e.encode())
	}
}

// listen compares the peer's claims and notes what it observes, until the peer leaves.
func (m *matcher) listen(ctx context.Context, peer int, tag uint64) {
	defer m.c.failure.observer.forget(peer)
	for {
		b, err := m.c.boot.Recv(ctx, peer, tag)
		if err != nil {
			return
		}
		e, err := decodeExchange(peer, b)
		if err == nil {
			err = m.c.failure.observer.hear(peer, e.pulses, e.questions)
		}
		if err != nil {
			err = mscclgo.Errorf(mscclgo.ErrRemote, matchOp, "its message is malformed: %w", err).At(m.c.Rank(), peer)
		} else {
			err = m.hear(e.claim)
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
	claim     claim
	leaves    bool   // it is the last
	questions uint64 // see observer.ask
	pulses    []pulse
}

// pulse is what a leader tells of a rank.
type pulse struct {
	rank   int
	beat   uint64
	status []byte // nil if it is the same as before
}

func (e exchange) encode() []byte {
	w := wire.NewWriter(claimBytes + 64)
	e.claim.write(w)
	w.Bool(e.leaves)
	w.U64(e.questions)
	w.U32(uint32(len(e.pulses)))
	for _, p := range e.pulses {
		w.U32(uint32(p.rank))
		w.U64(p.beat)
		w.Blob(p.status)
	}
	return w.Bytes()
}

// decodeExchange decodes what a rank sent.
func decodeExchange(rank int, b []byte) (exchange, error) {
	r := wire.NewReader(b)
	e := exchange{claim: readClaim(rank, r), leaves: r.Bool(), questions: r.U64()}
	for n := r.U32(); n > 0 && r.Err() == nil; n-- {
		e.pulses = append(e.pulses, pulse{int(r.U32()), r.U64(), r.Blob(watch.MaxBytes)})
	}
	return e, r.End()
}

// claimBytes is the most bytes of an encoded claim.
const claimBytes = 3*8 + textBytes

func (k claim) write(w *wire.Writer) {
	w.U64(k.number)
	w.U64(k.digest)
	w.String(k.text[:min(len(k.text), textBytes)])
}

func readClaim(rank int, r *wire.Reader) claim {
	return claim{rank: rank, number: r.U64(), digest: r.U64(), text: r.String(textBytes)}
}
