package collective_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// member is one rank of a test.
type member struct {
	ctx    context.Context
	comm   *communicator.Communicator
	runner *collective.Runner
	stream *gpu.Stream
}

// runMembers runs a test on so many ranks. Errors that wrap one of those wanted are
// expected.
func runMembers(t *testing.T, ranks int, o collective.Options, test func(*member) error, wanted ...error) {
	t.Helper()
	runMembersOn(t, ranks, communicator.Options{Scratch: 1 << 20}, o, test, wanted...)
}

// runMembersOn is runMembers with options of the communicator.
func runMembersOn(t *testing.T, ranks int, group communicator.Options, o collective.Options, test func(*member) error, wanted ...error) {
	t.Helper()
	testgroup.Run(t, ranks, group, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(collective.New(ctx, comm, o))(t)
		stream := testerr.Must(comm.Device().NewStream())(t)
		m := &member{ctx, comm, runner, stream}
		if err := test(m); err != nil {
			comm.Abort(err)
			errs := errors.Join(stream.Close(), runner.Close(ctx))
			for _, w := range wanted {
				if errors.Is(err, w) {
					return errs
				}
			}
			return errors.Join(err, errs)
		}
		return errors.Join(comm.Synchronize(ctx, stream), stream.Close(), runner.Close(ctx))
	})
}

// problem is a call with its data.
type problem struct {
	collective.Call
	offsetIn, offsetOut uint64 // of the data in their buffers
}

const guard = 96 // bytes before and behind data

// data returns what a rank's input holds.
func (p *problem) data(rank, ranks int) []byte {
	typ, err := elements.Of(p.Type)
	if err != nil {
		panic(err)
	}
	b := make([]byte, p.Count*uint64(p.Type.Size()*p.Kind.InParts(ranks)))
	typ.Fill(b, uint64(rank)*1000+p.Count)
	return b
}

// buffers returns an input and an output between guards. In place, one holds both.
func (m *member) buffers(p *problem) (whole [2]*gpu.Buffer, in, out *gpu.Buffer, err error) {
	rank, ranks := m.comm.Rank(), m.comm.Size()
	data := p.data(rank, ranks)
	part := p.Count * uint64(p.Type.Size())
	outBytes := part * uint64(p.Kind.OutParts(ranks))
	place := func(offset, bytes uint64, data []byte) (*gpu.Buffer, error) {
		b := append(bytes8(guard+offset), data...)
		b = append(b, bytes8(bytes-uint64(len(data))+guard)...)
		return gpu.Upload(m.comm.Device(), b)
	}
	if p.InPlace {
		all := max(part*uint64(p.Kind.InParts(ranks)), outBytes)
		content := bytes8(all)
		copy(content[part*uint64(p.Kind.Internal().InOffset(rank, true)):], data)
		if whole[1], err = place(p.offsetOut, all, content); err != nil {
			return
		}
		if in, err = whole[1].Slice(guard+p.offsetOut+part*uint64(p.Kind.Internal().InOffset(rank, true)), uint64(len(data))); err != nil {
			return
		}
		out, err = whole[1].Slice(guard+p.offsetOut+part*uint64(p.Kind.Internal().OutOffset(rank, true)), outBytes)
		return
	}
	if whole[0], err = place(p.offsetIn, uint64(len(data)), data); err != nil {
		return
	}
	if in, err = whole[0].Slice(guard+p.offsetIn, uint64(len(data))); err != nil {
		return
	}
	if whole[1], err = place(p.offsetOut, outBytes, nil); err != nil {
		return
	}
	out, err = whole[1].Slice(guard+p.offsetOut, outBytes)
	return
}

func bytes8(n uint64) []byte { return bytes.Repeat([]byte{0xa5}, int(n)) }

// contents returns what buffers hold.
func contents(whole [2]*gpu.Buffer) (all [2][]byte, err error) {
	for i, b := range whole {
		if b != nil && err == nil {
			all[i] = make([]byte, b.Size())
			err = gpu.CopyOut(all[i], b)
		}
	}
	return all, err
}

// prepared does a problem by a prepared operation and returns what its buffers hold.
func (m *member) prepared(p *problem) (all [2][]byte, err error) {
	whole, in, out, err := m.buffers(p)
	if err != nil {
		return all, err
	}
	call := p.Call
	if call.InPlace {
		rank, part := m.comm.Rank(), p.Count*uint64(p.Type.Size())
		size := part * uint64(p.Kind.Parts(m.comm.Size()))
		start := out.Ptr() - gpu.Ptr(part*uint64(p.Kind.Internal().OutOffset(rank, true)))
		if out, err = whole[1].Slice(uint64(start-whole[1].Ptr()), size); err != nil {
			return all, err
		}
	} else if call.In, err = m.runner.Share(m.ctx, in); err != nil {
		return all, err
	}
	if call.Out, err = m.runner.Share(m.ctx, out); err != nil {
		return all, err
	}
	op, err := m.runner.Prepare(m.ctx, call)
	if err != nil {
		return all, err
	}
	if err := m.comm.Barrier(m.ctx); err != nil {
		return all, err
	}
	if err := op.Launch(m.stream); err != nil {
		return all, err
	}
	if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
		return all, err
	}
	if all, err = contents(whole); err != nil {
		return all, err
	}
	for _, memory := range []*collective.Memory{call.In, call.Out} {
		if memory != nil {
			err = errors.Join(err, memory.Close(m.ctx))
		}
	}
	return all, errors.Join(err, op.Close(), free(whole))
}

func free(whole [2]*gpu.Buffer) error {
	var errs []error
	for _, b := range whole {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}

// unprepared does a problem by a call on any buffer.
func (m *member) unprepared(p *problem) (all [2][]byte, err error) {
	whole, in, out, err := m.buffers(p)
	if err != nil {
		return all, err
	}
	if p.Kind.Rooted() && m.comm.Rank() != p.Root {
		if p.Kind == collective.Reduce || p.Kind == collective.Gather {
			out = nil
		} else {
			in = nil
		}
	}
	if err := m.runner.Do(m.stream, out, in, p.Call); err != nil {
		return all, err
	}
	if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
		return all, err
	}
	if all, err = contents(whole); err != nil {
		return all, err
	}
	return all, free(whole)
}

// compare does a problem both ways.
func (m *member) compare(p *problem) error {
	want, err := m.prepared(p)
	if err != nil {
		return fmt.Errorf("prepared %v: %w", &p.Call, err)
	}
	got, err := m.unprepared(p)
	if err != nil {
		return fmt.Errorf("%v: %w", &p.Call, err)
	}
	if diff := testcmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%v, in place %v, %d and %d off, on rank %d: the buffers differ (-prepared +unprepared):\n%.2000s", &p.Call, p.InPlace, p.offsetIn, p.offsetOut, m.comm.Rank(), diff)
	}
	return nil
}

// only is a tuning of one algorithm.
func only(kind collective.Kind, algorithm string) *collective.Tuning {
	return &collective.Tuning{Rules: []collective.Rule{{
		Link: "*", Kind: kind, UpTo: math.MaxUint64, Choice: collective.Choice{Algorithm: algorithm, Blocks: 4, Threads: 64},
	}}}
}

// TestUnpreparedThreads has the tuning ask for direct with blocks of more threads than the algorithm has that
// calls on any buffer take in its place.
func TestUnpreparedThreads(t *testing.T) {
	for _, most := range []int{0, 1} {
		tuning := only(collective.AllReduce, "direct")
		tuning.Rules[0].Threads = 1024
		runMembers(t, 2, collective.Options{Tuning: tuning, MaxBlocks: most}, func(m *member) error {
			return m.compare(&problem{Call: collective.Call{Kind: collective.AllReduce, Type: collective.F32, Count: 5003}})
		})
	}
}

// TestTuningThreads has rules with grids that their algorithms cannot have, which are passed over. A call
// that asks for such a grid itself is an error.
func TestTuningThreads(t *testing.T) {
	rule := collective.Rule{Link: "*", Kind: collective.AllReduce, UpTo: math.MaxUint64}
	tuning := &collective.Tuning{}
	for _, rule.Choice = range []collective.Choice{{Algorithm: "oneShotLL128", Blocks: 4, Threads: 100}, {Algorithm: "pushed", Blocks: 4, Threads: 1024}, {Algorithm: "direct", Blocks: 4, Threads: 64}} {
		tuning.Rules = append(tuning.Rules, rule)
	}
	runMembers(t, 2, collective.Options{Tuning: tuning}, func(m *member) error {
		p := &problem{Call: collective.Call{Kind: collective.AllReduce, Type: collective.F32, Count: 5003}}
		if got, err := m.runner.Choose(p.Call); err != nil || got != tuning.Rules[2].Choice {
			return fmt.Errorf("the choice is %+v, %v", got, err)
		}
		if err := m.compare(p); err != nil { // prepared, and on any buffer
			return err
		}
		b, err := m.comm.Device().Alloc(4 * p.Count)
		if err != nil {
			return err
		}
		c := p.Call
		if c.Out, err = m.runner.Share(m.ctx, b); err != nil {
			return err
		}
		c.InPlace, c.Choice = true, tuning.Rules[1].Choice
		_, err = m.runner.Prepare(m.ctx, c)
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "no block of 1024 threads")
		return errors.Join(c.Out.Close(m.ctx), b.Close())
	})
	tuning.Rules = tuning.Rules[1:2]
	runMembers(t, 2, collective.Options{Tuning: tuning}, func(m *member) error {
		_, err := m.runner.Choose(collective.Call{Kind: collective.AllReduce, Type: collective.F32, Count: 1})
		testerr.Expect(t, err, mscclgo.ErrUnsupported, "pushed is done with blocks of 512 threads at most, and not of 1024")
		return nil
	})
}

// TestUnprepared does calls on any buffer by each algorithm, in pieces and at once, and
// finds what prepared operations leave, bit by bit.
func TestUnprepared(t *testing.T) {
	testdev.Parallel(t)
	for ranks := 1; ranks <= 4; ranks++ {
		for _, kind := range collective.Kinds() {
			for _, algorithm := range kind.Algorithms() {
				if testing.Short() && ranks > 2 && (ranks+int(kind))%2 == 0 {
					continue // another kind has so many ranks
				}
				if strings.HasPrefix(algorithm, "hier") && ranks != 2 || ranks == 1 && algorithm != "direct" && algorithm != "slots" && algorithm != "bulk" {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%d", kind, algorithm, ranks), func(t *testing.T) {
					// Some calls go through the scratch at once, some in many pieces.
					o := collective.Options{Tuning: only(kind, algorithm), Scratch: 4 << 10}
					runMembers(t, ranks, o, func(m *member) error {
						for i, count := range []uint64{1, 1024, 5003} {
							// The order in which a ring adds depends on where an element lies.
							typ := collective.F32
							if algorithm == "ring" {
								typ = collective.I32
							}
							p := &problem{Call: collective.Call{Kind: kind, Type: typ, Count: count, Root: (i + 1) % ranks}}
							p.offsetIn, p.offsetOut = []uint64{4, 1, 128}[i]+uint64(m.comm.Rank()%2*12), []uint64{32, 3, 16}[i]
							p.InPlace = i > 0 && kind.Internal().InPlace()
							if err := m.compare(p); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
		}
	}
}

// TestMaxBlocks bounds the blocks of all kernels, prepared and not.
func TestMaxBlocks(t *testing.T) {
	for _, most := range []int{1, 3} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			runMembers(t, 3, collective.Options{MaxBlocks: most, Scratch: 64 << 10}, func(m *member) error {
				for _, kind := range collective.Kinds() {
					for _, count := range []uint64{5, 3001} {
						if err := m.compare(&problem{Call: collective.Call{Kind: kind, Type: collective.F32, Count: count, Root: 1}, offsetIn: 4}); err != nil {
							return err
						}
					}
				}
				return m.bounded(most)
			})
		})
	}
	runMembers(t, 1, collective.Options{}, func(m *member) error {
		_, err := collective.New(m.ctx, m.comm, collective.Options{MaxBlocks: -1})
		testerr.Expect(t, err, mscclgo.ErrInvalid, "-1 blocks")
		return nil
	})
}

// bounded prepares calls by each algorithm, whose kernels must have no more blocks than that.
func (m *member) bounded(most int) (err error) {
	c := collective.Call{Count: 8000, Root: 1}
	var buffers [2]*gpu.Buffer
	for i, to := range []**collective.Memory{&c.In, &c.Out} {
		if buffers[i], err = m.comm.Device().Alloc(1 << 20); err != nil {
			return err
		}
		if *to, err = m.runner.Share(m.ctx, buffers[i]); err != nil {
			return err
		}
	}
	for _, c.Kind = range collective.Kinds() {
		for _, name := range append(c.Kind.Algorithms(), "") {
			if c.Choice = (collective.Choice{Algorithm: name, Blocks: 64, Threads: 64}); name == "" {
				c.Choice = collective.Choice{}
			}
			op, err := m.runner.Prepare(m.ctx, c)
			if name != "" && errors.Is(err, mscclgo.ErrInvalid) && most == 1 && strings.Contains(err.Error(), "MaxBlocks") {
				continue // it needs two
			}
			if err != nil {
				return err
			}
			if blocks := op.Choice().Blocks; blocks < 1 || blocks > most {
				return fmt.Errorf("%v by %s has %d blocks, and %d are the most", c.Kind, name, blocks, most)
			}
			if err := op.Close(); err != nil {
				return err
			}
		}
	}
	return errors.Join(m.runner.Close(m.ctx), buffers[0].Close(), buffers[1].Close())
}

// TestUnpreparedHosts makes calls on any buffer of ranks that do not map each other's
// memory, as ranks of several hosts do not.
func TestUnpreparedHosts(t *testing.T) {
	group := communicator.Options{Transports: registeredmem.Ethernet}
	runMembersOn(t, 2, group, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		for _, kind := range collective.Kinds() {
			for _, count := range []uint64{77, 3001} {
				p := &problem{Call: collective.Call{Kind: kind, Count: count, Root: 1}, offsetIn: 4}
				if err := m.compare(p); err != nil {
					return err
				}
			}
		}
		return m.exchangeCounts()
	})
}
