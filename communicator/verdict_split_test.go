package communicator_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// apart is by how much waits of one group begin before another group's. So their deadlines pass,
// and the group's verdict is there, before the other's deadlines.
const apart = verdictTimeout / 3

// barrier has a rank wait for the others of a group, in a kernel.
func barrier(t *testing.T, w *worker, c *communicator.Communicator) error {
	g, err := c.Group(t.Context())
	if err != nil {
		return err
	}
	return w.launch("barriers", 1, 32, g, 1)
}

// blames checks that the errors of a group's ranks name one, and have texts.
func blames(t *testing.T, what string, comms []*communicator.Communicator, culprit int, texts ...string) {
	t.Helper()
	for _, c := range comms {
		if c == nil {
			continue
		}
		select {
		case <-c.Done():
		case <-time.After(verdictTimeout + soon):
		}
		err := c.Err()
		for _, text := range texts {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s, rank %d: %v; want %q", what, c.Rank(), err, text)
			}
		}
		if e := (*mscclgo.Error)(nil); c.Rank() != culprit && errors.As(err, &e) && e.Peer != culprit {
			t.Errorf("%s, rank %d: the error names rank %d, not %d: %v", what, c.Rank(), e.Peer, culprit, err)
		}
	}
}

// settled waits for the workers' kernels.
func settled(t *testing.T, all []*worker) {
	for rank, w := range all {
		if err := w.stream.Synchronize(t.Context()); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// parted is a group of four, with a channel of each to each, and a part of it.
type parted struct {
	comms, part []*communicator.Communicator
	all         []*worker
	channels    []*communicator.MemoryChannels
}

func newParted(t *testing.T, colors, keys []int) *parted {
	return newPartedOf(t, group(t, 4, communicator.Options{Timeout: verdictTimeout, Scratch: 4096}), colors, keys)
}

func newPartedOf(t *testing.T, comms []*communicator.Communicator, colors, keys []int) *parted {
	p := &parted{comms: comms}
	p.all = workers(t, p.comms)
	p.part = children(t, p.comms, colors, keys)
	p.channels = make([]*communicator.MemoryChannels, 4)
	each(t, 4, func(rank int) (err error) {
		for _, c := range []*communicator.Communicator{p.comms[rank], p.part[rank]} {
			if c != nil {
				_, err = c.Group(t.Context()) // which is an exchange
			}
			if err != nil {
				return err
			}
		}
		p.channels[rank], err = p.comms[rank].MemoryChannels(t.Context(), upload(t, p.comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{Name: "halo"})
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	return p
}

// meet has some ranks wait for the others of their part, in kernels.
func (p *parted) meet(t *testing.T, ranks ...int) {
	t.Helper()
	for _, rank := range ranks {
		testerr.Check(t, barrier(t, p.all[rank], p.part[rank]))
	}
}

// await has a rank's kernel wait for another's signal in the whole group.
func (p *parted) await(rank, from int) error {
	return p.all[rank].launch("await", 1, 1, p.channels[rank].HandleOf(0, from))
}

// TestMissingSignalAmongGroups has ranks of a group, or of a part of it, wait for a rank that waits in the other for one that
// sends nothing. The group whose waits began first fails first.
func TestMissingSignalAmongGroups(t *testing.T) {
	type verdict struct {
		culprit int
		texts   []string
	}
	const outsider = "rank 3 of the outer group is not of this one"
	awaits := func(rank, from int) func(*testing.T, *parted) error {
		return func(_ *testing.T, p *parted) error { return p.await(rank, from) }
	}
	meet := func(ranks ...int) func(*testing.T, *parted) error {
		return func(t *testing.T, p *parted) error { p.meet(t, ranks...); return nil }
	}
	onHost := func(t *testing.T, p *parted) error {
		var wait sync.WaitGroup
		wait.Go(func() { p.part[2].Barrier(t.Context()) })
		t.Cleanup(wait.Wait)
		return nil
	}
	first, none := []int{0, 0, 0, -1}, []int{0, 0, 0, 0}
	for name, c := range map[string]struct {
		colors, keys []int
		begin, then  func(*testing.T, *parted) error
		outerFirst   bool // the outer group fails first
		part, outer  verdict
		aborts       bool // the part fails by the outer group's error
	}{
		"outside": {colors: first, keys: none, begin: meet(0, 1), then: awaits(2, 3),
			part: verdict{2, []string{"rank 3 of the outer group never signalled rank 2: rank 2 has waited",
				"for signal 1 of channel 'halo' from 3 of the outer group to 2, block 0, in the outer group", outsider}},
			outer: verdict{3, []string{"rank 3 never signalled rank 2: rank 2 has waited"}}},
		// The rank that sends nothing is of the part too, and waits there as the others do.
		"inside": {colors: []int{-1, 0, 0, 0}, keys: []int{0, -1, -2, -3}, begin: meet(1, 3), then: awaits(2, 3), // 3, 2, 1
			part:  verdict{0, []string{"rank 0 never signalled rank 1: rank 1 has waited", "channel 'halo' from 0 to 1, block 0, in the outer group; rank 0 itself has waited"}},
			outer: verdict{3, []string{"rank 3 never signalled rank 2: rank 2 has waited"}}},
		"the outer group fails first": {colors: first, keys: none, begin: awaits(2, 3), then: meet(0, 1), outerFirst: true,
			part:  verdict{2, []string{"the outer group has failed; ranks have its numbers", "rank 3 never signalled rank 2: rank 2 has waited", outsider}},
			outer: verdict{3, []string{"rank 3 never signalled rank 2: rank 2 has waited"}}},
		"the part fails first": {colors: []int{-1, 0, 0, -1}, keys: none, begin: meet(2), then: awaits(0, 2),
			part:  verdict{0, []string{"rank 0 did not come: rank 1 has waited"}},
			outer: verdict{1, []string{"rank 1 did not come: rank 2 has waited", ", in a part of the group"}}},
		"in a part": {colors: []int{-1, 0, 0, -1}, keys: none, begin: awaits(0, 2), then: meet(2), outerFirst: true, aborts: true,
			part:  verdict{0, []string{"rank 1 did not come"}},
			outer: verdict{1, []string{"rank 1 did not come: rank 2 has waited", ", in a part of the group; no kernel there waits for another rank"}}},
		"in a part, on the host": {colors: []int{-1, 0, 0, -1}, keys: none, begin: awaits(0, 2), then: onHost, outerFirst: true, aborts: true,
			part:  verdict{0, []string{"rank 1 did not come"}},
			outer: verdict{1, []string{"rank 1 did not come: rank 2 has waited", ", in a part of the group; no kernel there waits for another rank"}}},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t) // they mostly wait
			p := newParted(t, c.colors, c.keys)
			testerr.Check(t, c.begin(t, p))
			time.Sleep(apart)
			testerr.Check(t, c.then(t, p))
			early, earlier, late, later := p.part, c.part, p.comms, c.outer
			if c.outerFirst {
				early, earlier, late, later = p.comms, c.outer, p.part, c.part
			}
			blames(t, "the first group", early, earlier.culprit, earlier.texts...)
			for _, other := range late {
				if other != nil && other.Err() != nil {
					t.Errorf("rank %d: the second group has failed before its deadline: %v", other.Rank(), other.Err())
				}
			}
			if c.aborts {
				p.part[2].Abort(p.comms[2].Err())
			}
			blames(t, "the second group", late, later.culprit, later.texts...)
			settled(t, p.all)
		})
	}
}

// TestMissingSignalOutsideAborts is "outside" where ranks of the part abort the outer
// group with what they learn there.
func TestMissingSignalOutsideAborts(t *testing.T) {
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			p := newParted(t, []int{0, 0, 0, -1}, []int{0, -1, -2, 0}) // 2, 1, 0
			p.meet(t, 0, 1)
			time.Sleep(apart)
			testerr.Check(t, p.await(2, 3))
			err := p.part[first].Synchronize(t.Context(), p.all[first].stream)
			p.comms[first].Abort(err)
			blames(t, "the part", p.part, 0, "rank 3 of the outer group never signalled rank 0: rank 0 has waited")
			blames(t, "the outer group", p.comms, 3, "rank 3 of the outer group never signalled rank 0")
			settled(t, p.all)
		})
	}
}

// TestAbortByPart aborts the outer group, and another part, with an error that names ranks by their
// numbers in a part.
func TestAbortByPart(t *testing.T) {
	p := newParted(t, []int{0, 0, 0, -1}, []int{0, -1, -2, 0}) // 2, 1, 0
	other := children(t, p.comms, []int{-1, 0, 0, 0}, []int{0, 0, 0, 0})
	testerr.Check(t, barrier(t, p.all[0], p.part[0]))
	testerr.Check(t, barrier(t, p.all[1], p.part[1]))
	blames(t, "the part", p.part, 0, "rank 0 did not come")
	p.comms[1].Abort(fmt.Errorf("step 3: %w", p.part[1].Err()))
	blames(t, "the outer group", p.comms, 2, "another group of this rank has failed; ranks have its numbers (0 is rank 2 here, 1 is rank 1 here, 2 is rank 0 here)")
	other[1].Abort(p.part[1].Err())
	blames(t, "the other part", other, 1, "rank 0 did not come", "(0 is rank 1 here, 1 is rank 0 here)")
	settled(t, p.all)
}

// TestAbortByPartThroughAnother has the error of a part pass to the outer group through another part
// without the culprit. One rank there knows of the first part, and another has only heard the
// text.
func TestAbortByPartThroughAnother(t *testing.T) {
	for _, last := range []int{1, 3} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			p := newParted(t, []int{0, 0, 0, -1}, []int{0, -1, -2, 0}) // 2, 1, 0
			other := children(t, p.comms, []int{-1, 0, -1, 0}, []int{0, 0, 0, 0})
			p.meet(t, 0, 1)
			blames(t, "the part", p.part, 0, "rank 0 did not come")
			other[1].Abort(p.part[1].Err())
			blames(t, "the other part", other, 0, "rank 0 did not come", "rank 2 of the outer group is not of this one")
			p.comms[last].Abort(fmt.Errorf("step 4: %w", other[last].Err()))
			blames(t, "the outer group", p.comms, 2, "another group of this rank has failed; ranks have its numbers")
			settled(t, p.all)
		})
	}
}

// spy is an error of a program's, that looks when errors are examined.
type spy struct{ look func() }

func (s *spy) Error() string { return "the disk is full" }
func (s *spy) As(any) bool   { s.look(); return false }

// TestAbortAtOnce aborts the outer group as soon as a part has an error.
func TestAbortAtOnce(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	part := children(t, comms, []int{0, 0}, []int{0, -1})
	var looking, passed atomic.Bool // the group's own goroutines look at the error too
	part[0].Abort(&spy{func() {
		if err := part[0].Err(); err != nil && looking.CompareAndSwap(false, true) {
			passed.Store(true)
			comms[0].Abort(err)
			looking.Store(false)
		}
	}})
	if !passed.Load() {
		t.Fatal("the error was not passed on")
	}
	blames(t, "the outer group", comms, 0, "another group of this rank has failed; ranks have its numbers")
}

// TestMissingSignalOutsideInExchange is "outside" where the ranks of the part wait on
// the host.
func TestMissingSignalOutsideInExchange(t *testing.T) {
	p := newParted(t, []int{0, 0, 0, -1}, []int{0, 0, 0, 0})
	each(t, 3, func(rank int) error {
		if rank == 2 {
			time.Sleep(apart)
			return p.await(2, 3)
		}
		err := p.part[rank].Barrier(t.Context())
		failing(t, rank, err, mscclgo.ErrTimeout, "peer 2", "rank 3 of the outer group never signalled rank 2: rank 2 has waited")
		p.comms[rank].Abort(err)
		return nil
	})
	blames(t, "the outer group", p.comms, 3, "rank 3 of the outer group never signalled rank 2")
	settled(t, p.all)
}

// textual is a bootstrap that does not tell who failed.
type textual struct{ *bootstrap.Bootstrap }

func (b textual) Err() error {
	if err := b.Bootstrap.Err(); err != nil {
		return mscclgo.Errorf(mscclgo.ErrRemote, "test: group", "somebody gave up").At(b.Rank(), mscclgo.NoRank)
	}
	return nil
}

// TestOuterGroupFailsOfNobody is "the outer group fails first" where nobody hears who failed.
func TestOuterGroupFailsOfNobody(t *testing.T) {
	var boots []communicator.Bootstrap
	for _, b := range ranks(t, 4) {
		boots = append(boots, textual{b})
	}
	o := communicator.Options{Timeout: verdictTimeout, Scratch: 4096}
	p := newPartedOf(t, groupOver(t, boots, devices(t, 4), []communicator.Options{o, o, o, o}), []int{0, 0, 0, -1}, []int{0, 0, 0, 0})
	testerr.Check(t, p.await(2, 3))
	time.Sleep(apart)
	p.meet(t, 0, 1)
	blames(t, "the part", p.part, 2, "rank 3 of the outer group never signalled rank 2: rank 2 has waited", "rank 3 of the outer group is not of this one")
	settled(t, p.all)
}

// TestMissingSignalInOtherPart has ranks of a part wait for one that waits in another part, or in a
// part of the part, for a rank that does not come.
func TestMissingSignalInOtherPart(t *testing.T) {
	p := newParted(t, []int{0, 0, 0, -1}, []int{0, 0, 0, 0})
	other := children(t, p.comms, []int{-1, -1, 0, 0}, []int{0, 0, 1, 0}) // 3, 2
	each(t, 4, func(rank int) error {
		if other[rank] == nil {
			return nil
		}
		_, err := other[rank].Group(t.Context())
		return err
	})
	p.meet(t, 0, 1)
	time.Sleep(apart)
	testerr.Check(t, barrier(t, p.all[2], other[2]))
	blames(t, "the part", p.part, 2, "rank 3 of the outer group did not come: rank 2 has waited", "from 3 of the outer group to 2, block 0, in another group")
	blames(t, "the other part", other, 0, "rank 0 did not come: rank 1 has waited")
	settled(t, p.all)
}
