package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

// TestRandomCalls makes random collectives on groups of random sizes while ranks leave calls
// at random moments, and messages pass whose senders give up. No result may be wrong, no call
// may outlast its end on another rank, and after each round the calls match again.
func TestRandomCalls(t *testing.T) {
	for range 4 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomCalls(t, seed) })
	}
}

func randomCalls(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	bs := group(t, 2+r.IntN(30))
	size := len(bs)
	ctx := testContext(t)
	for round := range 15 {
		kind, root, leavers := r.IntN(3), r.IntN(size), r.IntN(3)
		leave := map[int]time.Duration{}
		for range leavers {
			leave[r.IntN(size)] = time.Duration(r.IntN(4)) * time.Millisecond
		}
		pause := make([]time.Duration, size)
		for i := range pause {
			if r.IntN(4) == 0 {
				pause[i] = time.Duration(r.IntN(5)) * time.Millisecond
			}
		}
		long := make([]byte, r.IntN(1<<uint(r.IntN(17))))
		errs := make([]error, size)
		var wg sync.WaitGroup
		for rank, b := range bs {
			wg.Go(func() {
				time.Sleep(pause[rank])
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				if d, ok := leave[rank]; ok {
					if d == 0 {
						cancel()
					} else {
						time.AfterFunc(d, cancel)
					}
				}
				errs[rank] = checkedCall(ctx, b, kind, root, round, long)
			})
		}
		wg.Wait()
		for rank, err := range errs {
			var e *mscclgo.Error
			_, left := leave[rank]
			switch {
			case err == nil:
			case !errors.As(err, &e):
				t.Fatalf("round %d, rank %d: %v", round, rank, err)
			case left && e.Kind == mscclgo.ErrAborted:
			case e.Kind == mscclgo.ErrRemote && e.Peer != mscclgo.NoRank:
				if _, ok := leave[e.Peer]; !ok {
					t.Errorf("round %d, rank %d blames %d, which did not leave: %v", round, rank, e.Peer, err)
				}
			default:
				t.Errorf("round %d, rank %d: %v", round, rank, err)
			}
			if len(leave) == 0 && err != nil {
				t.Errorf("round %d, rank %d: nobody left: %v", round, rank, err)
			}
		}
		each(t, bs, func(b *Bootstrap) error { return checkedCall(ctx, b, 0, 0, round, nil) })
	}
	nothingKnown(t, bs)
}

// checkedCall makes one collective and checks its result.
func checkedCall(ctx context.Context, b *Bootstrap, kind, root, round int, long []byte) error {
	block := func(rank int) []byte {
		v := binary.LittleEndian.AppendUint64(nil, uint64(round)<<32|uint64(rank))
		return append(v, long[:len(long)*rank/b.Size()]...)
	}
	switch kind {
	case 0:
		got, err := b.AllGather(ctx, block(b.Rank()))
		if err != nil {
			return err
		}
		for r, one := range got {
			if string(one) != string(block(r)) {
				return fmt.Errorf("rank %d has another block of rank %d", b.Rank(), r)
			}
		}
	case 1:
		return b.Barrier(ctx)
	default:
		got, err := b.Broadcast(ctx, root, block(b.Rank()))
		if err != nil {
			return err
		}
		if string(got) != string(block(root)) {
			return fmt.Errorf("rank %d has another message of root %d", b.Rank(), root)
		}
	}
	return nil
}

// TestRandomCancels sends messages of random sizes under one tag, some of whose contexts end
// at a random moment. What arrives is whole and in order, and all of it that was sent.
func TestRandomCancels(t *testing.T) {
	bs := group(t, 2)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for _, from := range bs {
		to := bs[1-from.Rank()]
		sent := make(chan bool, 1000)
		wg.Go(func() {
			defer close(sent)
			for n := range 150 {
				m := make([]byte, 9+rand.IntN(1<<uint(8+rand.IntN(16))))
				for i := 8; i < len(m); i++ {
					m[i] = byte(n)
				}
				binary.LittleEndian.PutUint64(m, uint64(n))
				during, cancel := context.WithCancel(ctx)
				if rand.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(800))*time.Microsecond, cancel)
				}
				err := from.Send(during, to.Rank(), 5, m)
				clear(m)
				cancel()
				sent <- err == nil
			}
			if err := from.Send(ctx, to.Rank(), 5, nil); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			arrived := map[uint64]bool{}
			next := uint64(0)
			for {
				m, err := to.Recv(ctx, from.Rank(), 5)
				if err != nil {
					t.Error(err)
					return
				}
				if len(m) == 0 {
					break
				}
				n := binary.LittleEndian.Uint64(m)
				if n < next {
					t.Errorf("message %d after %d", n, next)
				}
				next = n + 1
				arrived[n] = true
				for i := 8; i < len(m); i++ {
					if m[i] != byte(n) {
						t.Errorf("message %d of %d bytes has %d at %d", n, len(m), m[i], i)
						break
					}
				}
				if rand.IntN(4) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			for n := uint64(0); ; n++ {
				ok, more := <-sent
				if !more {
					return
				}
				if ok && !arrived[n] {
					t.Errorf("message %d was sent and did not arrive", n)
				}
			}
		})
	}
	wg.Wait()
}
