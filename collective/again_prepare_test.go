package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestPreparedAgain has contexts end in each exchange of calls that prepare others, on one rank after its part was sent,
// and on all. All ranks make the call again, and what it prepares works.
func TestPreparedAgain(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 1}} {
		t.Run(fmt.Sprint("hosts ", hosts), func(t *testing.T) {
			testgroup.RunLeaving(t, testgroup.Network(hosts...), func(ctx context.Context, c *communicator.Communicator, l *testgroup.Leaver) error {
				s, err := c.Device().NewStream()
				if err != nil {
					return err
				}
				for _, all := range []bool{false, true} {
					for call := range 3 {
						for exchange, left := 1, true; left; exchange++ {
							// What was sent matters, and one that was not is as one before.
							if left, err = prepareAgain(ctx, s, c, l, all || c.Rank() == 1, call, exchange, !all || exchange%2 == 0); err != nil {
								return fmt.Errorf("contexts end in exchange %d of call %d, on all ranks %v: %w", exchange, call, all, err)
							}
						}
					}
					if hosts[1] > 0 {
						break
					}
				}
				return s.Close()
			})
		})
	}
}

// prepareAgain makes a runner and prepares calls, each until it works, and makes them. It reports whether the context of
// a rank ended in the exchange of the call of that number, as it does on a rank that leaves.
func prepareAgain(ctx context.Context, s *gpu.Stream, c *communicator.Communicator, l *testgroup.Leaver, leaves bool, call, exchange int, sent bool) (bool, error) {
	const count, large = 1000, 40000 // more than the scratch has room for
	ranks, rank := c.Size(), c.Rank()
	r, err := New(ctx, c, Options{Scratch: 64 << 10})
	if err != nil {
		return false, err
	}
	r.room = 64 << 10
	in, err := gpu.Upload(c.Device(), bytes.Repeat([]byte{byte(rank + 1), 0, 0, 0}, large))
	if err != nil {
		return false, err
	}
	out, err := c.Device().Alloc(in.Size())
	if err != nil {
		return false, err
	}
	from, err := r.Share(ctx, in)
	if err != nil {
		return false, err
	}
	to, err := r.Share(ctx, out)
	if err != nil {
		return false, err
	}
	left, number := false, 0
	again := func(do func() error) error {
		leave := 0
		if number == call && leaves {
			leave = exchange
		}
		number++
		err := l.Again(leave, sent, do)
		left = left || l.Left
		return err
	}
	sum := func(operate func() error, of uint64) error {
		if err := errors.Join(gpu.CopyIn(out, make([]byte, out.Size())), operate(), c.Synchronize(ctx, s)); err != nil {
			return err
		}
		got := make([]byte, 4*of)
		if err := gpu.CopyOut(got, out); err != nil {
			return err
		}
		want := byte(ranks * (ranks + 1) / 2)
		if !bytes.Equal(got, bytes.Repeat([]byte{want, 0, 0, 0}, int(of))) {
			return fmt.Errorf("rank %d has sums %d and %d, want %d", rank, got[0], got[len(got)-4], want)
		}
		return nil
	}
	first, through := Call{Kind: AllReduce, Type: I32, Op: Sum, Count: large, In: from, Out: to}, "staged"
	if len(c.Hosts()) > 1 {
		through = "hier"
	}
	first.Algorithm, first.Blocks, first.Threads = through, 2, 64
	var prepared *Operation
	if err := again(func() (err error) { prepared, err = r.Prepare(ctx, first); return err }); err != nil {
		return false, err
	}
	if err := sum(func() error { return prepared.Launch(s) }, large); err != nil {
		return false, err
	}
	loads := []Call{{Kind: AllReduce, Type: I32, Op: Sum, Count: count}, {Kind: AllReduce, Type: I32, Op: Sum, Count: large}}
	if err := again(func() error { return r.Load(ctx, loads...) }); err != nil {
		return false, err
	}
	for _, of := range []uint64{count, large} {
		if err := sum(func() error { return r.AllReduce(s, out, in, of, I32, Sum) }, of); err != nil {
			return false, err
		}
	}
	parts := make([]Part, ranks)
	for i := range parts {
		parts[i] = Part{At: uint64(i) * count, Count: count}
	}
	for range 2 { // numbers are the same on all ranks
		var exchanged *Operation
		if err := again(func() (err error) {
			exchanged, err = r.PrepareAllToAllV(ctx, AllToAllV{Type: I32, In: in, Out: out, Sends: parts, Receives: parts})
			return err
		}); err != nil {
			return false, err
		}
		if err := errors.Join(exchanged.Launch(s), c.Synchronize(ctx, s)); err != nil {
			return false, err
		}
	}
	got := make([]byte, 4*count*ranks)
	if err := gpu.CopyOut(got, out); err != nil {
		return false, err
	}
	for i := range ranks {
		if v := got[4*count*i]; v != byte(i+1) {
			return false, fmt.Errorf("rank %d received %d from rank %d", rank, v, i)
		}
	}
	told, err := c.AllGather(ctx, fmt.Append(nil, left))
	if err != nil {
		return false, err
	}
	return bytes.Contains(bytes.Join(told, nil), []byte("true")), errors.Join(r.Close(ctx), in.Close(), out.Close())
}
