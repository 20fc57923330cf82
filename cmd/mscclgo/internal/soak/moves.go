package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
)

const (
	perPeer  = 4 // channels to each rank, and pipes: as many blocks may move something
	wordSize = 8
	words    = 3 // of a trade, of four
)

// An inbox is memory of this rank that peers write, in areas that take turns: a rank may be as
// many moves ahead of another as there are ranks in a ring.
type inbox struct {
	*gpu.Buffer
	area  uint64 // bytes
	areas int    // of memory channels, and as many of port channels
}

func newInbox(dev *gpu.Device, ranks int, most uint64) (b inbox, err error) {
	b.area, b.areas = most+2*guard, ranks+3
	b.Buffer, err = dev.Alloc(uint64(2*b.areas+2)*b.area + uint64(b.areas+1)*(words+1)*wordSize)
	return b, err
}

// shifted is where the memory channels of a move write, and ported the port channels.
func (b *inbox) shifted(move int) uint64 { return uint64(move%b.areas) * b.area }
func (b *inbox) ported(move int) uint64  { return uint64(b.areas+move%b.areas) * b.area }

// source is what this rank puts, and fetched where it gets the peer's.
func (b *inbox) source() uint64  { return uint64(2*b.areas) * b.area }
func (b *inbox) fetched() uint64 { return b.source() + b.area }

// traded is the words of a move, and own this rank's.
func (b *inbox) traded(move int) uint64 {
	return b.fetched() + b.area + uint64(move%b.areas)*(words+1)*wordSize
}
func (b *inbox) own() uint64 { return b.fetched() + b.area + uint64(b.areas)*(words+1)*wordSize }

// shift puts a random number of bytes to the next of some ranks, nil for all, and checks what
// comes from the one before. With mute this rank does not signal, and with other it has a block
// more or less than its peers.
func (w *worker) shift(ctx context.Context, ports bool, random *rand.Rand, step int, mute, other bool) error {
	kernel, handles, ranks, at := "shift", w.memory.Handles, w.memory.Ranks, w.inbox.shifted(w.shifts)
	if ports {
		kernel, handles, ranks, at = "portShift", w.ports.Handles, w.ports.Ranks, w.inbox.ported(w.moves)
		w.moves++
	} else {
		w.shifts++
	}
	n := len(ranks)
	me := slices.Index(ranks, w.comm.Rank())
	right, left := (me+1)%n, (me+n-1)%n
	bytes, blocks, threads := amount(random, w.Most), 1+random.IntN(perPeer), 1<<random.IntN(9)
	to, from := random.Uint64N(guard), random.Uint64N(guard)
	differ, more := w.Fault == "other grid" && step == w.At, 0
	if differ {
		more = 1 - 2*random.IntN(2)
		blocks = min(max(blocks, 2), perPeer-1)
	}
	graph := random.IntN(3) == 0
	w.what = fmt.Sprintf("step %d: %s of %d bytes by %d blocks of %d, from byte %d to %d, in a graph %v", step, kernel, bytes, blocks, threads, from, to, graph)
	if other {
		blocks += more
	}
	typ, err := elements.Of(collective.U8)
	if err != nil {
		return err
	}
	data := make([]byte, bytes)
	w.pauses.alone(func() { typ.Fill(data, w.seed(step, w.comm.Rank())) })
	if err := put(w.inbox.Buffer, w.inbox.source()+from, data); err != nil {
		return err
	}
	err = w.play(ctx, w.comm, func(s *gpu.Stream) error {
		return w.kernels[kernel].Launch(s, gpu.Blocks(blocks, threads), handles, n, right, left, at+to, w.inbox.source()+from, bytes, mute)
	}, graph, false)
	if err != nil || differ {
		return err // the shares of the victim's blocks are others
	}
	if err := get(data, w.inbox.Buffer, at+to); err != nil {
		return err
	}
	w.pauses.alone(func() { w.moved(typ.Wrong(data, w.seed(step, ranks[left]))) })
	return nil
}

// trade has the ports get, store, add and exchange at the next rank, and checks what came of
// it here and there.
func (w *worker) trade(ctx context.Context, random *rand.Rand, step int) error {
	me, n := w.comm.Rank(), w.comm.Size()
	right, left := (me+1)%n, (me+n-1)%n
	slot, at := w.moves%w.inbox.areas, w.inbox.traded(w.moves)
	w.moves++
	bytes, to, from := amount(random, w.Most), random.Uint64N(guard), random.Uint64N(guard)
	w.what = fmt.Sprintf("step %d: a trade of %d bytes, from byte %d to %d", step, bytes, from, to)
	typ, err := elements.Of(collective.U8)
	if err != nil {
		return err
	}
	data := make([]byte, bytes)
	w.pauses.alone(func() { typ.Fill(data, w.seed(step, me)) })
	if err := put(w.inbox.Buffer, w.inbox.source()+from, data); err != nil {
		return err
	}
	// The kernel is not captured: a graph that is launched twice would add twice.
	err = w.launch(ctx, "trade", w.ports.Handles, n, right, left, w.inbox.fetched()+to, w.inbox.source()+from, bytes, at, w.seed(step, me), w.inbox.own())
	if err != nil {
		return err
	}
	three, mine := make([]byte, words*wordSize), make([]byte, wordSize)
	if err := errors.Join(get(data, w.inbox.Buffer, w.inbox.fetched()+to), get(three, w.inbox.Buffer, at), get(mine, w.inbox.Buffer, w.inbox.own())); err != nil {
		return err
	}
	wrong := typ.Wrong(data, w.seed(step, right))
	theirs := w.seed(step, left)
	w.sums[slot] += theirs
	for i, want := range []uint64{theirs, w.sums[slot], theirs} {
		if binary.NativeEndian.Uint64(three[i*wordSize:]) != want {
			wrong++
		}
	}
	if binary.NativeEndian.Uint64(mine) != w.given[slot] {
		wrong++
	}
	w.given[slot] = w.seed(step, me)
	w.moved(wrong)
	return nil
}

// newPipes makes the pipes of a ring: threads fill the first where they can, and hosts the
// others. Collective.
func (w *worker) newPipes(ctx context.Context) error {
	random := rand.New(rand.NewPCG(w.Seed, 5))
	n := w.comm.Size()
	right, left := (w.comm.Rank()+1)%n, (w.comm.Rank()+n-1)%n
	for i := range w.pipes {
		size := channel.PipeSize{Slots: 2 << random.IntN(3), SlotBytes: 128 << (2 + random.IntN(8))}
		w.pipeMost[i] = min(w.Most, 256*size.SlotBytes) // more chunks take seconds on emulated devices
		var err error
		w.pipes[i], err = w.comm.Pipes(ctx, communicator.PipeOptions{
			To: []int{right}, From: []int{left}, PerPeer: perPeer, Size: size, Service: w.service, Ports: i == 1,
		})
		if err != nil {
			return err
		}
		w.leaving(w.pipes[i].Close)
	}
	return nil
}

// pass sends messages of random sizes around the ring of pipes, or reduces by it.
func (w *worker) pass(ctx context.Context, t *team, random *rand.Rand, step int) error {
	me, n := w.comm.Rank(), w.comm.Size()
	which, reduces := random.IntN(len(w.pipes)), random.IntN(2) == 0 && n > 1
	pipes, bytes := w.pipes[which], amount(random, w.pipeMost[which])
	blocks, threads := 1+random.IntN(perPeer), 32<<random.IntN(4)
	kernel, typ := "pipeShift", collective.U8
	if reduces {
		kernel, typ, bytes = "pipeReduce", collective.I32, bytes/4*4
	}
	graph := random.IntN(3) == 0
	w.what = fmt.Sprintf("step %d: %s of %d bytes by %d blocks of %d, in a graph %v", step, kernel, bytes, blocks, threads, graph)
	e, err := elements.Of(typ)
	if err != nil {
		return err
	}
	data := make([]byte, bytes)
	w.pauses.alone(func() { e.Fill(data, w.seed(step, me)) })
	in := t.in
	if reduces { // in place
		in = t.out
	}
	if err := put(in, 0, data); err != nil {
		return err
	}
	err = w.play(ctx, w.comm, func(s *gpu.Stream) error {
		if reduces {
			return w.kernels[kernel].Launch(s, gpu.Blocks(blocks, threads), pipes.Set(), me, n, t.out, bytes/4)
		}
		return w.kernels[kernel].Launch(s, gpu.Blocks(blocks, threads), pipes.Set(), t.in, t.out, bytes)
	}, graph, false)
	if err != nil {
		return err
	}
	if err := get(data, t.out, 0); err != nil {
		return err
	}
	if reduces {
		var seeds []uint64
		for rank := range n {
			seeds = append(seeds, w.seed(step, rank))
		}
		w.checked(func() int { return e.WrongReduced(data, collective.Sum, seeds, n) })
		return nil
	}
	w.checked(func() int { return e.Wrong(data, w.seed(step, (me+n-1)%n)) })
	return nil
}
