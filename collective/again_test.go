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

// TestCallsMadeAgain has contexts end in each exchange of calls of several, on one rank, on another and on all, before and
// after their parts are sent. All ranks make the call again, and it works.
func TestCallsMadeAgain(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 0, 0}, {0, 1}} {
		t.Run(fmt.Sprint("hosts ", hosts), func(t *testing.T) { callsMadeAgain(t, hosts) })
	}
}

func callsMadeAgain(t *testing.T, hosts []int) {
	testgroup.RunLeaving(t, testgroup.Network(hosts...), func(ctx context.Context, c *communicator.Communicator, l *testgroup.Leaver) error {
		s, err := c.Device().NewStream()
		if err != nil {
			return err
		}
		m := &groupMember{ctx: ctx, comm: c, stream: s}
		for who := range c.Size() + 2 {
			if len(c.Hosts()) > 1 && who != 1 && who != c.Size() {
				continue // a rank that waits for a lower one to dial does so until its time is up
			}
			for _, sent := range []bool{false, true} {
				for call := range 3 {
					for exchange, left := 1, true; left; exchange++ {
						if left, err = m.leave(l, who, call, exchange, sent); err != nil {
							return fmt.Errorf("contexts of %d end in exchange %d of call %d, sent %v: %w", who, exchange, call, sent, err)
						}
					}
				}
			}
		}
		return s.Close()
	})
}

// leave makes a runner, shares a buffer and loads groups, each until it works, and uses what it has. It reports
// whether a context ended in the call of that number. who is a rank, all ranks, or, one more, each rank in a later exchange than
// those below it.
func (m *groupMember) leave(l *testgroup.Leaver, who, call, exchange int, sent bool) (left bool, err error) {
	rank, ranks, number := m.comm.Rank(), m.comm.Size(), 0
	again := func(do func() error) error {
		leaves := 0
		switch {
		case number != call:
		case who == rank, who == ranks:
			leaves = exchange
		case who > ranks:
			leaves = exchange + rank
		}
		number++
		err := l.Again(leaves, sent, do)
		left = left || l.Left
		return err
	}
	var r *Runner
	var all []*Runner
	if err := again(func() (err error) {
		if r, err = New(m.ctx, m.comm, Options{Scratch: 64 << 10}); r != nil {
			r.groups.sizes = tinyGroups
			all = append(all, r)
		}
		return err
	}); err != nil {
		return false, err
	}
	data := bytes.Repeat([]byte{byte(rank), 0, 0, 0}, 1000)
	b, err := gpu.Upload(m.comm.Device(), data)
	if err != nil {
		return false, err
	}
	var memory *Memory
	if err := again(func() (err error) {
		memory, err = r.Share(m.ctx, b)
		return err
	}); err != nil {
		return false, err
	}
	if err := again(func() error { return r.LoadGroups(m.ctx) }); err != nil {
		return false, err
	}
	in, err := m.comm.Device().Alloc(uint64(len(data)))
	if err != nil {
		return false, err
	}
	g := r.Group()
	g.Send(m.stream, b, 1000, I32, (rank+1)%ranks)
	g.Recv(m.stream, in, 1000, I32, (rank+ranks-1)%ranks)
	if err := errors.Join(g.Launch(), m.comm.Synchronize(m.ctx, m.stream)); err != nil {
		return false, err
	}
	got := make([]byte, len(data))
	if err := gpu.CopyOut(got, in); err != nil {
		return false, err
	}
	if want := bytes.Repeat([]byte{byte((rank + ranks - 1) % ranks), 0, 0, 0}, 1000); !bytes.Equal(got, want) {
		return false, fmt.Errorf("rank %d received %v, want %v", rank, got[:8], want[:8])
	}
	op, err := r.Prepare(m.ctx, Call{Kind: AllReduce, Type: I32, Op: Sum, Count: 1000, Out: memory, InPlace: true})
	if err == nil {
		err = errors.Join(op.Launch(m.stream), m.comm.Synchronize(m.ctx, m.stream))
	}
	if err == nil {
		err = gpu.CopyOut(got, b)
	}
	if err != nil {
		return false, err
	}
	if want := byte(ranks * (ranks - 1) / 2); got[0] != want || got[3996] != want {
		return false, fmt.Errorf("rank %d has the sum %d, want %d", rank, got[0], want)
	}
	told, err := m.comm.AllGather(m.ctx, fmt.Append(nil, left))
	if err != nil {
		return false, err
	}
	errs := []error{r.Close(m.ctx)}
	for _, other := range all { // that others do not have
		other.closed.Store(true)
		if other != r {
			errs = append(errs, other.release())
		}
	}
	return bytes.Contains(bytes.Join(told, nil), []byte("true")), errors.Join(append(errs, in.Close(), b.Close())...)
}
