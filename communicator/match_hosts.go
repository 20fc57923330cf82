package communicator

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// compareInterval is how often the leaders of hosts exchange their last calls.
const compareInterval = 250 * time.Millisecond

// start begins to compare this host's calls with those of other hosts: the leader of
// each, its lowest rank, exchanges claims with the first leader. Only these messages
// have the tag.
func (m *matcher) start(leaders []int, tag uint64) {
	m.next = math.MaxUint64
	m.last.rank = m.c.Rank()
	var peers []int
	switch i := slices.Index(leaders, m.c.Rank()); {
	case i == 0:
		peers = leaders[1:]
	case i > 0:
		peers = leaders[:1]
	}
	if len(peers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { m.send(ctx, peers, tag) })
	for _, peer := range peers {
		wg.Go(func() { m.listen(ctx, peer, tag) })
	}
	m.stop = func() {
		cancel()
		wg.Wait()
	}
}

// send sends this rank's last call to the peers, if it is a new one.
func (m *matcher) send(ctx context.Context, peers []int, tag uint64) {
	tick := time.NewTicker(compareInterval)
	defer tick.Stop()
	sent := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.c.boot.Done():
			return
		case <-tick.C:
		}
		k := m.latest()
		if k.number == sent {
			continue
		}
		sent = k.number
		for _, peer := range peers {
			// An error means that the peer has left, or failed, which the bootstrap
			// reports.
			_ = m.c.boot.Send(ctx, peer, tag, k.encode())
		}
	}
}

// listen compares the peer's claims until the peer leaves.
func (m *matcher) listen(ctx context.Context, peer int, tag uint64) {
	for {
		b, err := m.c.boot.Recv(ctx, peer, tag)
		if err != nil {
			return
		}
		k, err := decodeClaim(peer, b)
		if err != nil {
			err = mscclgo.Errorf(mscclgo.ErrRemote, matchOp, "its message is malformed: %w", err).At(m.c.Rank(), peer)
		} else {
			err = m.hear(k)
		}
		if err != nil {
			m.c.failure.fail(err)
			return
		}
	}
}

// claimBytes is the most bytes of an encoded claim.
const claimBytes = 3*8 + textBytes

func (k claim) encode() []byte {
	w := wire.NewWriter(claimBytes)
	k.write(w)
	return w.Bytes()
}

func (k claim) write(w *wire.Writer) {
	w.U64(k.number)
	w.U64(k.digest)
	w.String(k.text[:min(len(k.text), textBytes)])
}

// decodeClaim decodes a claim.
func decodeClaim(rank int, b []byte) (claim, error) {
	r := wire.NewReader(b)
	k := readClaim(rank, r)
	return k, r.End()
}

func readClaim(rank int, r *wire.Reader) claim {
	return claim{rank: rank, number: r.U64(), digest: r.U64(), text: r.String(textBytes)}
}
