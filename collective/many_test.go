package collective_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// word returns element i of what a rank sends to another.
func word(from, to, i int) uint32 {
	return uint32(from)*2654435761 + uint32(to)*40503 + uint32(i)*97
}

// words returns n elements of what a rank sends to another, or if to is all -1.
func words(from, to, n int) []uint32 {
	all := make([]uint32, n)
	for i := range all {
		all[i] = word(from, to, i)
	}
	return all
}

// TestManyRanks runs collectives of more ranks than handles hold the addresses of, and checks every
// element.
func TestManyRanks(t *testing.T) {
	detector.SkipKernels(t)
	ranks := testgroup.Many(t)
	start := time.Now()
	// An algorithm for each size: the first elements of an all-reduce tell which.
	tuning := &collective.Tuning{}
	for _, r := range []collective.Rule{
		{Kind: collective.AllReduce, UpTo: 4 * 40, Choice: collective.Choice{Algorithm: "oneShotLL8"}},
		{Kind: collective.AllReduce, UpTo: 4 * 1000, Choice: collective.Choice{Algorithm: "twoShotLL16"}},
		{Kind: collective.AllReduce, UpTo: 4 * 2000, Choice: collective.Choice{Algorithm: "twoShotLL128"}},
		{Kind: collective.AllReduce, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct"}},
		{Kind: collective.AllToAll, UpTo: uint64(4 * 8 * ranks), Choice: collective.Choice{Algorithm: "LL8"}},
		{Kind: collective.AllToAll, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct"}},
		{Kind: collective.AllGather, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct"}},
		{Kind: collective.ReduceScatter, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "direct"}},
		{Kind: collective.Gather, UpTo: uint64(4 * 8 * ranks), Choice: collective.Choice{Algorithm: "LL8"}},
		{Kind: collective.Gather, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "slots"}},
		{Kind: collective.Scatter, UpTo: uint64(4 * 8 * ranks), Choice: collective.Choice{Algorithm: "LL8"}},
		{Kind: collective.Scatter, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: "slots"}},
	} {
		r.Link, r.Blocks, r.Threads = "*", 1, 64
		tuning.Rules = append(tuning.Rules, r)
	}
	runMembersOn(t, ranks, communicator.Options{Scratch: 4 << 20}, collective.Options{Tuning: tuning, Scratch: 1 << 20}, func(m *member) error {
		for _, call := range []struct {
			name string
			do   func() error
		}{
			{"all-reduce of 40 by oneShotLL8", func() error { return m.manyReduced(40) }},
			{"all-reduce of 1000 by twoShotLL16", func() error { return m.manyReduced(1000) }},
			{"all-reduce of 2000 by twoShotLL128", func() error { return m.manyReduced(2000) }},
			{"all-reduce of 9001 directly", func() error { return m.manyReduced(9001) }},
			{"all-to-all of 7 by LL8", func() error { return m.manyExchanged(7) }},
			{"all-to-all of 33 directly", func() error { return m.manyExchanged(33) }},
			{"all-gather in place", func() error { return m.manyInPlace(collective.AllGather, 19) }},
			{"reduce-scatter in place", func() error { return m.manyInPlace(collective.ReduceScatter, 19) }},
			{"gather of 7 by LL8", func() error { return m.manyGathered(7, ranks-1) }},
			{"gather of 11 by slots", func() error { return m.manyGathered(11, ranks-2) }},
			{"scatter of 7 by LL8", func() error { return m.manyScattered(7, ranks-1) }},
			{"scatter of 11 by slots", func() error { return m.manyScattered(11, 1) }},
			{"all-to-all with counts", m.manyCounts},
			{"group", m.manyMessages},
		} {
			if err := call.do(); err != nil {
				return fmt.Errorf("%s: %w", call.name, err)
			}
			if m.comm.Rank() == 0 {
				t.Logf("%s: after %v, %s", call.name, time.Since(start).Round(time.Millisecond), used())
			}
		}
		return nil
	})
}

// used returns what the process has used of memory and threads.
func used() string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err.Error()
	}
	var found []string
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") || strings.HasPrefix(line, "Threads:") {
			found = append(found, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(found, ", ")
}

// called makes a call with an input on an output of n elements, waits for it, and compares what is
// there. Elements behind the output stay as they are.
func (m *member) called(in []uint32, want []uint32, call func(out, in *gpu.Buffer) error) error {
	input, err := gpu.Upload(m.comm.Device(), append(in, 1)) // which may be empty
	if err != nil {
		return err
	}
	output, err := gpu.Upload(m.comm.Device(), make([]uint32, len(want)+5))
	if err != nil {
		return err
	}
	if err := call(output, input); err != nil {
		return err
	}
	if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
		return err
	}
	return errors.Join(m.compareWords(output, append(want, 0, 0, 0, 0, 0)), input.Close(), output.Close())
}

func (m *member) compareWords(b *gpu.Buffer, want []uint32) error {
	got := make([]uint32, len(want))
	if err := gpu.CopyOut(got, b); err != nil {
		return err
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("element %d of %d on rank %d is %d, want %d", i, len(want), m.comm.Rank(), got[i], want[i])
		}
	}
	return nil
}

// sumsOf returns the sums of n elements of all ranks, which each sends to rank `to`.
func sumsOf(ranks, to, n int) []uint32 {
	all := make([]uint32, n)
	for from := range ranks {
		for i := range all {
			all[i] += word(from, to, i)
		}
	}
	return all
}

func (m *member) manyReduced(n int) error {
	return m.called(words(m.comm.Rank(), -1, n), sumsOf(m.comm.Size(), -1, n), func(out, in *gpu.Buffer) error {
		return m.runner.AllReduce(m.stream, out, in, uint64(n), collective.I32, collective.Sum)
	})
}

func (m *member) manyExchanged(n int) error {
	var in, want []uint32
	for peer := range m.comm.Size() {
		in, want = append(in, words(m.comm.Rank(), peer, n)...), append(want, words(peer, m.comm.Rank(), n)...)
	}
	return m.called(in, want, func(out, in *gpu.Buffer) error {
		return m.runner.AllToAll(m.stream, out, in, uint64(n), collective.I32)
	})
}

// manyInPlace prepares a call on one buffer, a part of which is this rank's.
func (m *member) manyInPlace(kind collective.Kind, n int) error {
	rank, ranks := m.comm.Rank(), m.comm.Size()
	data, want := make([]uint32, n*ranks), make([]uint32, n*ranks)
	for part := range ranks {
		if kind == collective.AllGather {
			copy(want[n*part:], words(part, -1, n))
			copy(data[n*rank:], words(rank, -1, n))
		} else {
			copy(data[n*part:], words(rank, part, n))
		}
	}
	if kind == collective.ReduceScatter {
		copy(want, data)
		copy(want[n*rank:], sumsOf(ranks, rank, n))
	}
	b, err := gpu.Upload(m.comm.Device(), data)
	if err != nil {
		return err
	}
	memory, err := m.runner.Share(m.ctx, b)
	if err != nil {
		return err
	}
	op, err := m.runner.Prepare(m.ctx, collective.Call{Kind: kind, Type: collective.I32, Out: memory, InPlace: true, Count: uint64(n)})
	if err != nil {
		return err
	}
	if err := op.Launch(m.stream); err != nil {
		return err
	}
	if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
		return err
	}
	return errors.Join(m.compareWords(b, want), op.Close(), memory.Close(m.ctx), b.Close())
}

func (m *member) manyGathered(n, root int) error {
	var want []uint32
	if m.comm.Rank() == root {
		for from := range m.comm.Size() {
			want = append(want, words(from, root, n)...)
		}
	}
	return m.called(words(m.comm.Rank(), root, n), want, func(out, in *gpu.Buffer) error {
		if m.comm.Rank() != root {
			out = nil
		}
		return m.runner.Gather(m.stream, out, in, uint64(n), collective.I32, root)
	})
}

func (m *member) manyScattered(n, root int) error {
	var all []uint32
	if m.comm.Rank() == root {
		for to := range m.comm.Size() {
			all = append(all, words(root, to, n)...)
		}
	}
	return m.called(all, words(root, m.comm.Rank(), n), func(out, in *gpu.Buffer) error {
		if m.comm.Rank() != root {
			in = nil
		}
		return m.runner.Scatter(m.stream, out, in, uint64(n), collective.I32, root)
	})
}

// manyCounts exchanges parts of many sizes: most small or empty, and some ranks' parts too large for
// packets.
func (m *member) manyCounts() error {
	rank := m.comm.Rank()
	count := func(from, to int) int {
		if from%100 == 3 && to%90 == 5 {
			return 3001 + from
		}
		return (from*7 + to) % 5
	}
	for round := range 2 { // the second with what the first left
		other := 1001 * round
		var in, want []uint32
		var sends, receives []uint64
		for peer := range m.comm.Size() {
			in = append(in, words(rank+other, peer, count(rank+other, peer))...)
			want = append(want, words(peer+other, rank, count(peer+other, rank))...)
			sends, receives = append(sends, uint64(count(rank+other, peer))), append(receives, uint64(count(peer+other, rank)))
		}
		err := m.called(in, want, func(out, in *gpu.Buffer) error {
			return m.runner.AllToAllV(m.stream, out, in, sends, receives, collective.I32)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// manyMessages sends a message to each rank, this one included, and then only some.
func (m *member) manyMessages() error {
	rank, ranks := m.comm.Rank(), m.comm.Size()
	for _, step := range []int{1, 37} {
		const n = 9
		var in, want []uint32
		for peer := range ranks {
			in = append(in, words(rank+1000*step, peer, n)...)
			if (rank-peer+ranks)%ranks%step == 0 {
				want = append(want, words(peer+1000*step, rank, n)...)
			} else {
				want = append(want, make([]uint32, n)...)
			}
		}
		err := m.called(in, want, func(out, in *gpu.Buffer) error {
			g := m.runner.Group()
			for peer := range ranks {
				from, err := in.Slice(uint64(4*n*peer), 4*n)
				if err != nil {
					return err
				}
				to, err := out.Slice(uint64(4*n*peer), 4*n)
				if err != nil {
					return err
				}
				if (peer-rank+ranks)%ranks%step == 0 {
					g.Send(m.stream, from, n, collective.I32, peer)
				}
				if (rank-peer+ranks)%ranks%step == 0 {
					g.Recv(m.stream, to, n, collective.I32, peer)
				}
			}
			return g.Launch()
		})
		if err != nil {
			return err
		}
	}
	return nil
}
