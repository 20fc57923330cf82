package collective_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// reduceExactly returns the reduction of elements at the same place in all inputs. What the
// small floats of problem.data make is exact in a float32, so that results are rounded once.
func reduceExactly(typ collective.Type, op collective.Op, elements [][]byte) []byte {
	product, sum, whole := float32(1), float32(0), int64(0)
	for _, e := range elements {
		switch typ {
		case collective.F8E5M2:
			product *= collective.Float8E5M2(e[0]).Float32()
		case collective.F16:
			sum += collective.Float16(binary.LittleEndian.Uint16(e)).Float32()
		default:
			whole += int64(int32(binary.LittleEndian.Uint32(e)))
		}
	}
	if op == collective.Avg {
		sum, whole = sum/float32(len(elements)), whole/int64(len(elements))
	}
	switch typ {
	case collective.F8E5M2:
		return []byte{byte(collective.NewFloat8E5M2(product))}
	case collective.F16:
		return binary.LittleEndian.AppendUint16(nil, uint16(collective.NewFloat16(sum)))
	}
	return binary.LittleEndian.AppendUint32(nil, uint32(whole))
}

// wanted returns what the buffers that problem has on a rank must hold after it.
func (p *problem) wanted(rank, ranks int) (all [2][]byte) {
	part := int(p.Count) * p.Type.Size()
	framed := func(offset uint64, content []byte) []byte {
		return slices.Concat(bytes8(guard+offset), content, bytes8(guard))
	}
	out := bytes8(uint64(part * p.Kind.OutParts(ranks)))
	if !p.InPlace {
		all[0] = framed(p.offsetIn, p.data(rank, ranks))[:guard+int(p.offsetIn)+part*p.Kind.InParts(ranks)+guard]
	} else {
		content := bytes8(uint64(part * p.Kind.Parts(ranks)))
		copy(content[part*p.Kind.Internal().InOffset(rank, true):], p.data(rank, ranks))
		out = content
	}
	at := part * p.Kind.Internal().OutOffset(rank, p.InPlace)
	for i := range p.Kind.OutParts(ranks) {
		from, theirs := p.Kind.Internal().Sources(rank, i, ranks, p.Root)
		if len(from) == 0 {
			continue
		}
		var sources [][]byte
		for _, r := range from {
			sources = append(sources, p.data(r, ranks)[theirs*part:][:part])
		}
		result := out[at+i*part:][:part]
		if len(from) == 1 {
			copy(result, sources[0])
			continue
		}
		size := p.Type.Size()
		for e := 0; e < part; e += size {
			elements := make([][]byte, len(from))
			for i, s := range sources {
				elements[i] = s[e:][:size]
			}
			copy(result[e:], reduceExactly(p.Type, p.Op, elements))
		}
	}
	all[1] = framed(p.offsetOut, out)
	return all
}

// right does a problem both ways and compares what the buffers hold with what they must.
func (m *member) right(p *problem) error {
	want := p.wanted(m.comm.Rank(), m.comm.Size())
	for i, do := range []func(*problem) ([2][]byte, error){m.prepared, m.unprepared} {
		way := []string{"prepared", "on any buffer"}[i]
		got, err := do(p)
		if err != nil {
			return fmt.Errorf("%v, %s: %w", &p.Call, way, err)
		}
		for i, name := range []string{"input", "output"} {
			if !bytes.Equal(want[i], got[i]) {
				return fmt.Errorf("%v, %s, in place %v, %d and %d off, on rank %d: the %s differs (-want +got):\n%.1500s",
					&p.Call, way, p.InPlace, p.offsetIn, p.offsetOut, m.comm.Rank(), name, testcmp.Diff(want[i], got[i]))
			}
		}
	}
	return nil
}

// groupsOnHosts are hosts of ranks: even and uneven, in order and not, with one owner of a host and with
// two, whose twins are in another order than their hosts.
var groupsOnHosts = [][]int{{0, 0, 1}, {0, 1, 1, 0, 2, 2}, {0, 1, 2, 2, 1, 0, 1}, {0, 1, 2, 3}}

// runOnHosts runs a test on ranks of several hosts, which the network joins.
func runOnHosts(t *testing.T, hosts []int, options collective.Options, test func(*member) error) {
	t.Helper()
	o := testgroup.Network(hosts...)
	for rank := range o {
		o[rank].Scratch = 1 << 20
	}
	testgroup.RunEach(t, o, func(ctx context.Context, comm *communicator.Communicator) error {
		if n := slices.Max(hosts) + 1; len(comm.Hosts()) != n {
			return fmt.Errorf("the hosts are %v, want %d", comm.Hosts(), n)
		}
		runner, err := collective.New(ctx, comm, options)
		testerr.Check(t, err)
		stream := testerr.Must(comm.Device().NewStream())(t)
		err = test(&member{ctx, comm, runner, stream})
		if err == nil {
			err = comm.Synchronize(ctx, stream)
		}
		if err != nil {
			comm.Abort(err)
		}
		return errors.Join(err, stream.Close(), runner.Close(ctx))
	})
}

// TestLeastScratch sends between hosts with the least scratch: through posts that hold the least.
func TestLeastScratch(t *testing.T) {
	const count = 30_001
	hosts := []int{0, 1, 1}
	runOnHosts(t, hosts, collective.Options{Scratch: 1}, func(m *member) error {
		ranks, rank := len(hosts), m.comm.Rank()
		p := &problem{Call: collective.Call{Kind: collective.AllToAll, Type: collective.U8, Count: count}}
		in, err := gpu.Upload(m.comm.Device(), p.data(rank, ranks))
		if err != nil {
			return err
		}
		var counts []uint64
		var want []byte
		for from := range ranks {
			counts = append(counts, count)
			want = append(want, p.data(from, ranks)[rank*count:][:count]...)
		}
		for _, way := range []struct {
			name string
			do   func(out *gpu.Buffer) error
		}{
			{"with counts", func(out *gpu.Buffer) error {
				return m.runner.AllToAllV(m.stream, out, in, counts, counts, p.Type)
			}},
			{"by a group", func(out *gpu.Buffer) error {
				g := m.runner.Group()
				for peer := range ranks {
					from, err := in.Slice(uint64(peer*count), count)
					if err != nil {
						return err
					}
					to, err := out.Slice(uint64(peer*count), count)
					if err != nil {
						return err
					}
					g.Send(m.stream, from, count, p.Type, peer)
					g.Recv(m.stream, to, count, p.Type, peer)
				}
				return g.Launch()
			}},
		} {
			out, err := m.comm.Device().Alloc(uint64(len(want)))
			if err != nil {
				return err
			}
			if err := errors.Join(m.runner.LoadGroups(m.ctx), way.do(out), m.comm.Synchronize(m.ctx, m.stream)); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			got := make([]byte, len(want))
			if err := gpu.CopyOut(got, out); err != nil {
				return err
			}
			if diff := testcmp.Diff(want, got); diff != "" {
				return fmt.Errorf("%s on rank %d (-want +got):\n%.1500s", way.name, rank, diff)
			}
			if err := out.Close(); err != nil {
				return err
			}
		}
		return in.Close()
	})
}

// TestOnHosts does the collectives of a root, and reduce-scatters, on ranks of several hosts: at
// once and in pieces, of any alignment, in place and not, with roots on several hosts.
func TestOnHosts(t *testing.T) {
	testdev.Parallel(t)
	reductions := []struct {
		typ collective.Type
		op  collective.Op
	}{{collective.I32, collective.Sum}, {collective.F8E5M2, collective.Prod}, {collective.F16, collective.Avg}, {collective.I32, collective.Avg}}
	for _, hosts := range groupsOnHosts {
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			runOnHosts(t, hosts, collective.Options{Scratch: 4 << 10}, func(m *member) error {
				for shift, kind := range []collective.Kind{collective.ReduceScatter, collective.Reduce, collective.Gather, collective.Scatter} {
					for i, count := range []uint64{17, 1, 1001} {
						p := &problem{Call: collective.Call{Kind: kind, Type: collective.U8, Count: count, Root: (len(hosts) - 1 + i) % len(hosts)}}
						if kind.Reduces() {
							of := reductions[(i+2*shift)%len(reductions)]
							p.Type, p.Op = of.typ, of.op
						}
						p.offsetIn, p.offsetOut = []uint64{0, 1, 4, 128}[i%4]+uint64(m.comm.Rank()%2*12), []uint64{16, 3, 0}[i%3]
						p.InPlace = i%2 == 0 && kind.Internal().InPlace()
						if err := m.right(p); err != nil {
							return err
						}
					}
					if err := m.runner.Do(m.stream, nil, nil, collective.Call{Kind: kind}); err != nil {
						return fmt.Errorf("%v of nothing: %w", kind, err)
					}
				}
				return nil
			})
		})
	}
}

// TestRails does all-gathers and broadcasts by the hierarchy, on one to four hosts: of a piece and of
// several, of shares that some owners have none of, in place and not.
func TestRails(t *testing.T) {
	testdev.Parallel(t)
	byHierarchy(t, []collective.Kind{collective.AllGather, collective.Broadcast}, 256<<10, 300_001)
}

// byHierarchy does collectives by the hierarchy, on one to four hosts, of `most` elements and fewer. Some roots
// have twins and some have none, and calls that can be in place are made both ways.
func byHierarchy(t *testing.T, kinds []collective.Kind, scratch, most uint64) {
	for _, hosts := range append(slices.Clone(groupsOnHosts), []int{0, 0, 0}, []int{0, 1, 1, 1, 1, 1}) {
		for _, kind := range kinds {
			t.Run(fmt.Sprint(hosts, kind), func(t *testing.T) {
				options := collective.Options{Tuning: only(kind, "hier"), Scratch: scratch}
				runOnHosts(t, hosts, options, func(m *member) error {
					for i, count := range []uint64{1, 17, 4_000, most, 129} {
						p := &problem{Call: collective.Call{Kind: kind, Type: collective.U8, Count: count}}
						if kind.Rooted() {
							p.Root = (len(hosts) - 1 + 2*i) % len(hosts)
						}
						p.offsetIn, p.offsetOut = []uint64{0, 1, 4, 128}[i%4]+uint64(m.comm.Rank()%2*12), []uint64{16, 3, 0}[i%3]
						p.InPlace = i%2 == 0 && kind.Internal().InPlace()
						if err := m.right(p); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// hierarchies are the all-reduces that reduce within hosts first.
var hierarchies = []string{"hier", "hierRing", "hierTree"}

// TestAllReduceOnHosts does all-reduces by each way between hosts, on up to seven hosts, of which
// some have two children in a tree, one or none.
func TestAllReduceOnHosts(t *testing.T) {
	testdev.Parallel(t)
	for _, hosts := range append(slices.Clone(groupsOnHosts), []int{0, 1, 2, 3, 4, 5, 6}) {
		for _, algorithm := range hierarchies {
			t.Run(fmt.Sprint(hosts, algorithm), func(t *testing.T) {
				options := collective.Options{Tuning: only(collective.AllReduce, algorithm), Scratch: 64 << 10}
				runOnHosts(t, hosts, options, func(m *member) error {
					for i, count := range []uint64{1, 17, 12_000, 30_000} { // of no part for some, and of several pieces
						p := &problem{Call: collective.Call{Kind: collective.AllReduce, Type: collective.I32, Count: count}}
						if i%2 == 1 {
							p.Type, p.Op = collective.F16, collective.Avg
						}
						p.offsetIn, p.offsetOut = []uint64{0, 4, 128}[i%3]+uint64(m.comm.Rank()%2*12), []uint64{16, 2, 0}[i%3]
						p.InPlace = i%2 == 0
						if err := m.right(p); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// TestHierarchiesInTurn makes prepared calls at random, by each way between hosts, of grids and
// sizes that differ, with nothing between them: they use the halves of one inbox.
func TestHierarchiesInTurn(t *testing.T) {
	hosts := []int{0, 1, 1, 2, 3}
	runOnHosts(t, hosts, collective.Options{}, func(m *member) error {
		const count = 2000
		start := func(rank, of int) []int32 {
			values := make([]int32, count)
			for i := range values {
				values[i] = int32(i*(of+1) + 7*rank)
			}
			return values
		}
		var memories [2]*collective.Memory
		var want [2][][]int32 // of each rank
		for i := range memories {
			b, err := gpu.Upload(m.comm.Device(), start(m.comm.Rank(), i))
			if err != nil {
				return err
			}
			if memories[i], err = m.runner.Share(m.ctx, b); err != nil {
				return err
			}
			for rank := range hosts {
				want[i] = append(want[i], start(rank, i))
			}
		}
		random := rand.New(rand.NewPCG(5, 6)) // alike on all ranks
		for range 150 {
			from, n := random.IntN(2), []int{3, 40, count}[random.IntN(3)]
			to := (from + random.IntN(2)) % 2
			c := collective.Call{Kind: collective.AllReduce, Type: collective.I32, Count: uint64(n), Out: memories[to]}
			if c.InPlace = from == to; !c.InPlace {
				c.In = memories[from]
			}
			c.Choice = collective.Choice{Algorithm: hierarchies[random.IntN(3)], Blocks: 1 + random.IntN(4), Threads: 32}
			op, err := m.runner.Prepare(m.ctx, c)
			if err == nil {
				err = op.Launch(m.stream)
			}
			if err != nil {
				return err
			}
			for i := range n {
				sum := int32(0)
				for _, values := range want[from] {
					sum += values[i]
				}
				for _, values := range want[to] {
					values[i] = sum
				}
			}
		}
		if err := m.comm.Synchronize(m.ctx, m.stream); err != nil {
			return err
		}
		for i, memory := range memories {
			got := make([]int32, count)
			if err := gpu.CopyOut(got, memory.Buffer); err != nil {
				return err
			}
			if diff := testcmp.Diff(want[i][m.comm.Rank()], got); diff != "" {
				return fmt.Errorf("rank %d: memory %d differs (-want +got):\n%.2000s", m.comm.Rank(), i, diff)
			}
		}
		return nil
	})
}

// TestChainOnHosts makes calls of all kinds, each of what the one before it left, with nothing
// between them: on several streams and in graphs, with calls on either side of these.
func TestChainOnHosts(t *testing.T) {
	runOnHosts(t, []int{0, 0, 1, 2}, collective.Options{Scratch: 16 << 10}, func(m *member) error {
		const count = 700 // more than a piece of some
		ranks := m.comm.Size()
		var x, other, y, z, w *gpu.Buffer
		values := make([]int32, count*ranks)
		for i := range values {
			values[i] = int32(i + 3*m.comm.Rank())
		}
		for _, b := range []**gpu.Buffer{&x, &other, &y, &z, &w} {
			var err error
			if *b, err = gpu.Upload(m.comm.Device(), values); err != nil {
				return err
			}
		}
		counts := slices.Repeat([]uint64{count}, ranks)
		round := func(s *gpu.Stream) error {
			r, all, typ := m.runner, uint64(count*ranks), collective.I32
			return errors.Join(
				r.ReduceScatter(s, y, x, count, typ, collective.Sum),
				r.AllGather(s, other, y, count, typ),
				r.Reduce(s, z, other, all, typ, collective.Avg, 1), // of what all have
				r.Scatter(s, y, z, count, typ, 1),
				r.Gather(s, w, y, count, typ, 3),
				r.Broadcast(s, other, w, all, typ, 3),
				r.AllToAllV(s, x, other, counts, counts, typ),
			)
		}
		second, err := m.comm.Device().NewStream()
		if err != nil {
			return err
		}
		if err := errors.Join(round(m.stream), round(second), second.BeginCapture(), round(second), round(second)); err != nil {
			return err
		}
		graph, err := second.EndCapture()
		if err != nil {
			return err
		}
		if err := errors.Join(graph.Launch(m.stream), graph.Launch(second), round(m.stream)); err != nil {
			return err
		}
		if err := errors.Join(m.comm.Synchronize(m.ctx, second), m.comm.Synchronize(m.ctx, m.stream)); err != nil {
			return err
		}
		if err := gpu.CopyOut(values, x); err != nil {
			return err
		}
		// A round leaves part r of the sums in every part of rank r's data, so that the next one
		// adds up the parts.
		parts := make([][]int32, ranks)
		for r := range parts {
			parts[r] = make([]int32, count)
			for i := range parts[r] {
				for rank := range ranks {
					parts[r][i] += int32(count*r + i + 3*rank)
				}
			}
		}
		for range 6 {
			for i := range count {
				sum := int32(0)
				for r := range parts {
					sum += parts[r][i]
				}
				for r := range parts {
					parts[r][i] = sum
				}
			}
		}
		want := slices.Repeat(parts[m.comm.Rank()], ranks)
		if diff := testcmp.Diff(want, values); diff != "" {
			return fmt.Errorf("rank %d: the results differ (-want +got):\n%.2000s", m.comm.Rank(), diff)
		}
		return errors.Join(graph.Close(), second.Close(), x.Close(), other.Close(), y.Close(), z.Close(), w.Close())
	})
}

// TestAbsentOnHosts has a rank that does not make a call, of which the others are told once their
// patience ends.
func TestAbsentOnHosts(t *testing.T) {
	t.Parallel()
	const ranks, absent, count = 3, 2, 1000
	calls := map[string]func(*member, *gpu.Buffer, *gpu.Buffer) error{
		"reduce-scatter": func(m *member, out, in *gpu.Buffer) error {
			return m.runner.ReduceScatter(m.stream, out, in, count, collective.F32, collective.Sum)
		},
		"gather": func(m *member, out, in *gpu.Buffer) error {
			return m.runner.Gather(m.stream, out, in, count, collective.F32, absent)
		},
		"counts": func(m *member, out, in *gpu.Buffer) error {
			counts := slices.Repeat([]uint64{count}, ranks)
			return m.runner.AllToAllV(m.stream, out, in, counts, counts, collective.F32)
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait
			o := communicator.Options{Timeout: 4 * time.Second, Transports: registeredmem.Ethernet}
			runMembersOn(t, ranks, o, collective.Options{}, func(m *member) error {
				var b [2]*gpu.Buffer
				for i := range b {
					var err error
					if b[i], err = m.comm.Device().Alloc(4 * count * ranks); err != nil {
						return err
					}
				}
				// The first call, which prepares, is made by all.
				if err := errors.Join(call(m, b[1], b[0]), m.comm.Synchronize(m.ctx, m.stream)); err != nil {
					return err
				}
				if m.comm.Rank() == absent {
					<-m.comm.Done()
					return mscclgo.Errorf(mscclgo.ErrAborted, "be absent", "the others have given up")
				}
				err := errors.Join(call(m, b[1], b[0]), m.comm.Synchronize(m.ctx, m.stream))
				var typed *mscclgo.Error
				if !errors.As(err, &typed) || typed.Peer != absent {
					return fmt.Errorf("without rank %d: %v", absent, err)
				}
				return err
			}, mscclgo.ErrTimeout, mscclgo.ErrAborted, mscclgo.ErrRemote)
		})
	}
}

// TestRailsAbsent has a rank of a host, or of the other, that does not make a call by the hierarchy. Its
// blocks wait for each other too, and none may be blamed for that.
func TestRailsAbsent(t *testing.T) {
	t.Parallel()
	const count = 1000
	even, uneven := []int{0, 0, 1, 1}, []int{1, 0, 0, 0} // of the latter some ranks have no twins
	for i, c := range []struct {
		kind  collective.Kind
		hosts []int
	}{
		{collective.AllGather, even},
		{collective.AllGather, uneven},
		{collective.Broadcast, even},
		{collective.AllToAll, uneven},
		{collective.Gather, uneven},
		{collective.Scatter, even},
	} {
		kind, hosts := c.kind, c.hosts
		for absent := range hosts {
			if testing.Short() && (i/2+absent)%2 == 1 {
				continue
			}
			t.Run(fmt.Sprint(kind, hosts, absent), func(t *testing.T) {
				t.Parallel() // they wait
				o := testgroup.Network(hosts...)
				for rank := range o {
					o[rank].Timeout = 1500 * time.Millisecond
				}
				errs := testgroup.Errors(t, o, func(ctx context.Context, comm *communicator.Communicator) error {
					runner, err := collective.New(ctx, comm, collective.Options{Tuning: only(kind, "hier")})
					if err != nil {
						return err
					}
					stream, err := comm.Device().NewStream()
					if err != nil {
						return err
					}
					defer func() { _ = errors.Join(stream.Close(), runner.Close(ctx)) }() // of a group that has failed
					var b [2]*gpu.Buffer
					for i := range b {
						if b[i], err = comm.Device().Alloc(4 * count); err != nil {
							return err
						}
					}
					out, in := b[1], b[0]
					call := func() (err error) {
						const typ, part, root = collective.F32, count / 4, 1
						switch kind {
						case collective.AllGather:
							err = runner.AllGather(stream, out, in, part, typ)
						case collective.Broadcast:
							err = runner.Broadcast(stream, in, in, count, typ, root)
						case collective.AllToAll:
							err = runner.AllToAll(stream, out, in, part, typ)
						case collective.Gather:
							err = runner.Gather(stream, out, in, part, typ, root)
						case collective.Scatter:
							err = runner.Scatter(stream, out, in, part, typ, root)
						}
						return errors.Join(err, comm.Synchronize(ctx, stream))
					}
					if err := call(); err != nil { // the first, which prepares, is made by all
						return err
					}
					if comm.Rank() == absent {
						<-comm.Done()
						return mscclgo.Errorf(mscclgo.ErrAborted, "be absent", "the others have given up")
					}
					err = call()
					var typed *mscclgo.Error
					if err == nil && kind.Rooted() {
						<-comm.Done() // it needs nothing of that rank
						err = comm.Err()
					}
					if !errors.As(err, &typed) || typed.Peer != absent {
						t.Errorf("rank %d, without rank %d: %v", comm.Rank(), absent, err)
					}
					return err
				})
				for rank, err := range errs {
					if err == nil {
						t.Errorf("rank %d's call succeeded", rank)
					}
				}
			})
		}
	}
}
