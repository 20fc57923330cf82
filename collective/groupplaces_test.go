package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// rounds is a buffer of a rank, of which two halves hold what it sends to each rank and what it gets from
// each. The latter may be shared.
type rounds struct {
	*groupMember
	each    uint64 // bytes of a message
	out, in *gpu.Buffer
	memory  *Memory
}

// newRounds makes the buffers for messages of so many bytes, which are off so many bytes from an alignment.
func (m *groupMember) newRounds(each, off uint64, shares bool) (*rounds, error) {
	all := each*uint64(m.comm.Size()) + off
	r := &rounds{groupMember: m, each: each}
	whole, err := m.comm.Device().Alloc(all)
	if err != nil {
		return nil, err
	}
	if r.out, err = whole.Slice(off, all-off); err != nil {
		return nil, err
	}
	if whole, err = m.comm.Device().Alloc(all); err != nil {
		return nil, err
	}
	if r.in, err = whole.Slice(off, all-off); err == nil && shares {
		r.memory, err = m.runner.Share(m.ctx, r.in)
	}
	return r, err
}

// launch launches an all-to-all but for what a rank sends to itself, in parts of each message: all of
// these go in one group.
func (r *rounds) launch(parts uint64) error {
	rank, ranks := r.comm.Rank(), r.comm.Size()
	g := r.runner.Group()
	for part := range parts {
		first, end := r.each*part/parts, r.each*(part+1)/parts
		for k := 1; k < ranks; k++ {
			to, from := (rank+k)%ranks, (rank+ranks-k)%ranks
			out, outErr := r.out.Slice(uint64(to)*r.each+first, end-first)
			in, inErr := r.in.Slice(uint64(from)*r.each+first, end-first)
			if err := errors.Join(outErr, inErr); err != nil {
				return err
			}
			g.Send(r.stream, out, end-first, U8, to)
			g.Recv(r.stream, in, end-first, U8, from)
		}
	}
	return g.Launch()
}

// content is what a rank sends to another in a round.
func (r *rounds) content(from, to, round int) []byte {
	b := make([]byte, r.each)
	l := letter{seed: uint64(from<<16 | to<<8 | round)}
	l.fill(b)
	return b
}

// fill writes what the rank sends in a round.
func (r *rounds) fill(round int) error {
	var all []byte
	for to := range r.comm.Size() {
		all = append(all, r.content(r.comm.Rank(), to, round)...)
	}
	return gpu.CopyIn(r.out, all)
}

// check compares what the rank got in a round.
func (r *rounds) check(round int) error {
	if err := r.comm.Synchronize(r.ctx, r.stream); err != nil {
		return err
	}
	got := make([]byte, r.in.Size())
	if err := gpu.CopyOut(got, r.in); err != nil {
		return err
	}
	for from := range r.comm.Size() {
		part := got[uint64(from)*r.each:][:r.each]
		if from != r.comm.Rank() && !bytes.Equal(part, r.content(from, r.comm.Rank(), round)) {
			return fmt.Errorf("rank %d: what it got from rank %d in round %d is wrong", r.comm.Rank(), from, round)
		}
	}
	return nil
}

// slots returns what is in the slots of this rank's box, both for packets and for other data.
func (m *groupMember) slots() ([]byte, error) {
	g := &m.runner.groups
	_, _, packets, _ := g.sizes.boxLayout(uint64(m.runner.group.Size), g.lanes(m.runner))
	b, err := g.box.Buffer.Slice(packets, g.box.Buffer.Size()-packets-loadedMessages*workMessageBytes)
	if err != nil {
		return nil, err
	}
	data := make([]byte, b.Size())
	return data, gpu.CopyOut(data, b)
}

// TestPlaced has large messages to shared memory, which go through no slot, and to other memory, which go
// through slots. They are in launches and in replayed graphs, at any alignment, one message or several in
// a row, and by any number of blocks.
func TestPlaced(t *testing.T) {
	for _, c := range []struct {
		ranks, blocks int
		each, parts   uint64
		off           uint64
		shares        bool
	}{
		{2, 3, 50_000, 1, 0, true}, {2, 1, 30_001, 1, 5, true}, {2, 64, 100_003, 7, 3, true}, {2, 3, 50_000, 7, 3, false},
		{3, 2, 20_000, 1, 16, true}, {4, 3, 9999, 4, 1, true}, {4, 64, 4096, 1, 0, false}, {8, 5, 10_000, 3, 0, true},
	} {
		for _, link := range []string{"other", NVLink} {
			t.Run(fmt.Sprintf("%+v/%s", c, link), func(t *testing.T) {
				sizes := tinyGroups
				sizes.blocks = c.blocks
				runGroups(t, c.ranks, sizes, link, func(m *groupMember) error {
					r, err := m.newRounds(c.each, c.off, c.shares)
					if err != nil {
						return err
					}
					if err := m.runner.LoadGroups(m.ctx); err != nil {
						return err
					}
					before, err := m.slots()
					if err != nil {
						return err
					}
					graph, err := capture(m.stream, func() error { return r.launch(c.parts) })
					if err != nil {
						return err
					}
					for round := range 6 {
						if err := r.fill(round); err != nil {
							return err
						}
						if round%3 == 1 {
							err = r.launch(c.parts)
						} else {
							err = graph.Launch(m.stream)
						}
						if err := errors.Join(err, r.check(round)); err != nil {
							return err
						}
					}
					if err := m.comm.Barrier(m.ctx); err != nil {
						return err
					}
					after, err := m.slots()
					if err != nil {
						return err
					}
					if bytes.Equal(before, after) != c.shares {
						return fmt.Errorf("rank %d: messages to shared memory: %v; the slots have not changed: %v", m.comm.Rank(), c.shares, !c.shares)
					}
					return errors.Join(graph.Close(), r.memory.Close(m.ctx), r.in.Close(), r.out.Close())
				})
			})
		}
	}
}

// TestPlacedSome has a receiver with places for some large messages in a row, and for others none.
func TestPlacedSome(t *testing.T) {
	for _, blocks := range []int{1, 3, 64} {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) {
			sizes := tinyGroups
			sizes.blocks = blocks
			runGroups(t, 2, sizes, NVLink, func(m *groupMember) error {
				const each, messages = 5001, 20
				peer, content := 1-m.comm.Rank(), make([]byte, messages*each)
				for i := range content {
					content[i] = byte(i / 3 * 7)
				}
				out, err := gpu.Upload(m.comm.Device(), content)
				if err != nil {
					return err
				}
				// What is shared, and what is not, of which there is one behind the other.
				var in [2]*gpu.Buffer
				for i := range in {
					if in[i], err = gpu.Upload(m.comm.Device(), make([]byte, messages*each)); err != nil {
						return err
					}
				}
				memory, err := m.runner.Share(m.ctx, in[0])
				if err != nil {
					return err
				}
				shared := func(i uint64) uint64 { return 0x5a35c >> i % 2 }
				g := m.runner.Group()
				for i := range uint64(messages) {
					// Of every eighth message the last byte alone.
					at, n := i*each, uint64(each)
					if i%8 == 7 {
						at, n = at+each-1, 1
					}
					from, fromErr := out.Slice(at, n)
					to, toErr := in[shared(i)].Slice(at, n)
					if err := errors.Join(fromErr, toErr); err != nil {
						return err
					}
					g.Send(m.stream, from, n, U8, peer)
					g.Recv(m.stream, to, n, U8, peer)
				}
				if err := errors.Join(g.Launch(), m.comm.Synchronize(m.ctx, m.stream)); err != nil {
					return err
				}
				want, got := [2][]byte{}, [2][]byte{}
				for i := range in {
					want[i], got[i] = make([]byte, messages*each), make([]byte, messages*each)
					if err := gpu.CopyOut(got[i], in[i]); err != nil {
						return err
					}
				}
				for i := range uint64(messages) {
					first := i * each
					if i%8 == 7 {
						first += each - 1
					}
					copy(want[shared(i)][first:(i+1)*each], content[first:])
				}
				for i := range in {
					if !bytes.Equal(want[i], got[i]) {
						return fmt.Errorf("buffer %d is not as it should be", i)
					}
				}
				return errors.Join(memory.Close(m.ctx), out.Close(), in[0].Close(), in[1].Close())
			})
		})
	}
}

// TestPlacesOffered has receives of which the place is offered, and others of which it is not.
func TestPlacesOffered(t *testing.T) {
	runGroupsOnHosts(t, []int{0, 0, 1}, tinyGroups, "other", func(m *groupMember) error {
		rank := m.comm.Rank()
		const n = 10_000
		whole, err := m.comm.Device().Alloc(3 * n)
		if err != nil {
			return err
		}
		part := func(at, bytes uint64) *gpu.Buffer {
			b, sliceErr := whole.Slice(at, bytes)
			err = errors.Join(err, sliceErr)
			return b
		}
		memory, shareErr := m.runner.Share(m.ctx, part(n, n))
		freed, allocErr := m.comm.Device().Alloc(n)
		if err := errors.Join(err, shareErr, allocErr); err != nil {
			return err
		}
		stale, err := m.runner.Share(m.ctx, freed)
		if err != nil {
			return err
		}
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		near, far := 1-rank, 2
		if rank == 2 {
			near, far = 2, 0
		}
		first := memory.Ptr()
		table := new(groupTable)
		table.arg.Large = m.runner.groups.sizes.most()
		check := func(what string, b *gpu.Buffer, count uint64, from int, want gpu.Ptr) {
			if got := table.place(m.runner, &message{m.stream, b, 0, count, U8, from, true}); got != want {
				err = errors.Join(err, fmt.Errorf("rank %d: %s: offered %#x, want %#x", rank, what, got, want))
			}
		}
		// There are ranks that know their numbers once a group was launched.
		if err := m.runner.Group().Launch(); err != nil {
			return err
		}
		g := m.runner.Group()
		if _, err := g.table(); err != nil {
			return err
		}
		m.runner.groups.empty()
		all := part(n, n)
		if rank < 2 {
			theirs := memory.theirs[near]
			if theirs == 0 || memory.theirs[far] != 0 {
				return fmt.Errorf("rank %d: the others have the memory at %#x", rank, memory.theirs)
			}
			check("all of it", all, n, near, theirs)
			check("a part", part(n+300, n-300), n-300, near, theirs+300)
			check("the first of more", part(n, 2*n), n, near, theirs)
			check("a large part", all, tinyGroups.large+1, near, theirs)
		}
		check("a small part", all, tinyGroups.large, near, 0)
		check("from another host", all, n, far, 0)
		check("from this rank", all, n, rank, 0)
		check("what begins before", part(n-1, n), n, near, 0)
		check("what ends behind", part(n+1, n), n, near, 0)
		check("what is behind", part(2*n, n), n, near, 0)
		check("what is more", part(n, 2*n), n+1, near, 0)
		if rank < 2 {
			check("a buffer of its own", freed, n, near, stale.theirs[near])
		}
		// The memory of what was closed may be another buffer's.
		at := *freed
		if err := freed.Close(); err != nil {
			return err
		}
		check("where a buffer was", &at, n, near, 0)
		if err := memory.Close(m.ctx); err != nil {
			return err
		}
		check("what is no longer shared", all, n, near, 0)
		if all.Ptr() != first {
			return fmt.Errorf("rank %d: the buffer has moved", rank)
		}
		return errors.Join(err, stale.Close(m.ctx), whole.Close())
	})
}

// TestPlacedClosed has a graph that receives in memory which is then closed.
func TestPlacedClosed(t *testing.T) {
	runGroups(t, 2, tinyGroups, "other", func(m *groupMember) error {
		r, err := m.newRounds(10_000, 0, true)
		if err != nil {
			return err
		}
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		graph, err := capture(m.stream, func() error { return r.launch(1) })
		if err != nil {
			return err
		}
		if err := errors.Join(r.fill(1), graph.Launch(m.stream), r.check(1), r.memory.Close(m.ctx)); err != nil {
			return err
		}
		err = graph.Launch(m.stream)
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "memory 0 from byte 0, which its calls use, is closed") {
			return fmt.Errorf("a graph whose memory is closed: %v", err)
		}
		// The buffer is as good as any other.
		if err := errors.Join(r.fill(2), r.launch(1), r.check(2)); err != nil {
			return err
		}
		return errors.Join(graph.Close(), r.in.Close(), r.out.Close())
	})
}

// TestTooManyEntries adds messages to a table that is as long as a pair can tell.
func TestTooManyEntries(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		r := testerr.Must(New(ctx, comm, Options{}))(t)
		defer r.Close(ctx)
		table := &groupTable{places: true, messages: make([]workMessage, mostOfGroup+1)}
		testerr.Expect(t, table.add(r.Group(), 1, 1-comm.Rank(), []*message{{}}, nil), mscclgo.ErrInvalid, "entries of the table")
		if len(table.pairs) > 0 {
			t.Error("the pair is in the table")
		}
		return nil
	})
}

// TestKeepsBeside checks how many lanes have a multiprocessor each beside kernels that keep some busy.
func TestKeepsBeside(t *testing.T) {
	for _, c := range []struct {
		multiprocessors, busy int
		most, want            uint64
	}{
		{132, 96, 64, 36},
		{132, 68, 64, 64},
		{132, 0, 64, 64},
		{132, 100, 64, 32},
		{132, 101, 64, 64},
		{132, 192, 64, 64},
		{1, 0, 1, 1},
		{1, 1, 1, 1},
	} {
		table := groupTable{busy: c.busy}
		if got := table.keepsBeside(c.multiprocessors, c.most); got != c.want {
			t.Errorf("%d multiprocessors, %d lanes, at most %d more: %d, want %d", c.multiprocessors, c.busy, c.most, got, c.want)
		}
	}
}
