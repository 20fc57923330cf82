package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// differing is an all-to-all in which rank `to` does not receive what rank `from` sends.
type differing struct {
	sends, receives uint64
	typ             Type // of the receiver's call; the others have F32
	from, to        int
	others          uint64 // what all other pairs exchange
	graph           bool   // the call is captured
}

// slotsThatDiffer are how the parts travel on one host.
var slotsThatDiffer = map[string]struct {
	ranks int
	link  string
	sizes groupSizes
}{
	"LL16":      {2, "other", defaultGroupSizes},
	"LL128":     {3, NVLink, defaultGroupSizes},
	"slots":     {2, NVLink, tinyGroups},
	"few slots": {4, "other", unpackedGroups},
}

// TestCountsDiffer has one rank that does not receive what another sends to it: all learn of
// it at once, from an error that names both ranks, the call, and what each of them has, and no byte beside
// the parts is written.
func TestCountsDiffer(t *testing.T) {
	testdev.Parallel(t)
	for name, c := range map[string]differing{
		"smaller":          {sends: 100, receives: 90, from: 0, to: 1, others: 5},
		"larger":           {sends: 90, receives: 100, from: 1, to: 0, others: 5},
		"one more":         {sends: 60_000, receives: 60_001, from: 1, to: 0, others: 60_000},
		"large and small":  {sends: 60_000, receives: 3, from: 0, to: 1},
		"small and large":  {sends: 3, receives: 60_000, from: 0, to: 1, others: 1},
		"none is sent":     {receives: 10, from: 0, to: 1, others: 2},
		"none is received": {sends: 10, from: 0, to: 1, others: 2},
		"none but sent":    {sends: 60_000, from: 1, to: 0},
		"none but awaited": {receives: 60_000, from: 1, to: 0},
		"type":             {sends: 100, receives: 100, typ: I32, from: 0, to: 1},
		"type and count":   {sends: 100, receives: 200, typ: F16, from: 0, to: 1, others: 2},
		"in a graph":       {sends: 100, receives: 90, from: 0, to: 1, others: 5, graph: true},
		"none, in a graph": {receives: 10, from: 1, to: 0, graph: true},
	} {
		t.Run(name, func(t *testing.T) {
			for how, s := range slotsThatDiffer {
				t.Run(how, func(t *testing.T) {
					testgroup.Run(t, s.ranks, communicator.Options{Timeout: time.Minute, Scratch: 256 << 10}, func(ctx context.Context, comm *communicator.Communicator) error {
						return c.run(ctx, comm, Options{}, func(runner *Runner) { runner.link, runner.groups.sizes = s.link, s.sizes })
					})
				})
			}
			for _, hosts := range [][]int{{0, 1}, {0, 1, 2, 2}} {
				t.Run(fmt.Sprintf("hosts/%v", hosts), func(t *testing.T) {
					o := testgroup.Network(hosts...)
					for rank := range o {
						o[rank].Timeout = time.Minute
					}
					testgroup.RunEach(t, o, func(ctx context.Context, comm *communicator.Communicator) error {
						return c.run(ctx, comm, Options{Scratch: 16 << 10}, func(*Runner) {})
					})
				})
			}
		})
	}
}

// run finds the difference with a runner that change has changed.
func (c differing) run(ctx context.Context, comm *communicator.Communicator, o Options, change func(*Runner)) error {
	runner, err := New(ctx, comm, o)
	if err != nil {
		return err
	}
	change(runner)
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	err = errors.Join(c.found(runner, stream), stream.Synchronize(ctx), stream.Close())
	_ = runner.Close(ctx) // whose peers may have closed theirs, as the group has failed
	return err
}

// found makes calls that are right and then the one that is not.
func (c differing) found(r *Runner, s *gpu.Stream) error {
	comm := r.comm
	rank, ranks := comm.Rank(), comm.Size()
	typ := F32
	if rank == c.to {
		typ = c.typ
	}
	sends, receives := make([]uint64, ranks), make([]uint64, ranks)
	for p := range ranks {
		sends[p], receives[p] = c.others, c.others
	}
	right := slices.Clone(sends)
	if rank == c.from {
		sends[c.to] = c.sends
	}
	if rank == c.to {
		receives[c.from] = c.receives
	}
	sum := func(counts []uint64) (n uint64) {
		for _, c := range counts {
			n += c
		}
		return n * uint64(typ.Size())
	}
	const behind = 1024
	fill := func(n uint64) []byte { return bytes.Repeat([]byte{0xa5}, int(n)) }
	in, err := gpu.Upload(comm.Device(), fill(4*sum(sends)+4*sum(right)+behind))
	if err != nil {
		return err
	}
	end := max(sum(receives), 4*sum(right))
	whole, err := gpu.Upload(comm.Device(), fill(behind+end+behind))
	if err != nil {
		return err
	}
	out, err := whole.Slice(behind, end)
	if err != nil {
		return err
	}
	for range 2 {
		err = errors.Join(err, r.AllToAllV(s, out, in, right, right, F32))
	}
	err = errors.Join(err, comm.Synchronize(context.Background(), s))
	if err != nil && comm.Err() == nil { // unless others have made the next call
		return err
	}
	begun := time.Now()
	call := func() error { return r.AllToAllV(s, out, in, sends, receives, typ) }
	if c.typ != F32 { // past what compares the ranks' calls, as it does so later on several hosts
		call = func() error {
			all := AllToAllV{Type: typ, In: in, Out: out}
			all.Sends, _ = inARow(sends)
			all.Receives, _ = inARow(receives)
			messages, _, err := r.messagesOf("", &all)
			if err != nil {
				return err
			}
			return r.exchangeParts(s, orderedCall{}, &Group{runner: r, messages: messages, ofAll: true})
		}
	}
	if c.graph {
		captured := call
		call = func() error {
			err := errors.Join(s.BeginCapture(), captured())
			graph, ended := s.EndCapture()
			if err := errors.Join(err, ended); err != nil {
				return err
			}
			defer graph.Close()
			return graph.Launch(s)
		}
	}
	if err := call(); err != nil && comm.Err() == nil {
		return fmt.Errorf("rank %d: the call returned %w", rank, err)
	}
	_ = comm.Synchronize(context.Background(), s) // ranks that are not concerned may have done their part
	<-comm.Done()
	if took := time.Since(begun); took > 30*time.Second {
		return fmt.Errorf("rank %d: it took %v", rank, took)
	}
	want := []string{fmt.Sprintf("rank %d sends %d f32 to rank %d, which receives %d %v (message 2 from rank %d)", c.from, c.sends, c.to, c.receives, c.typ, c.from)}
	if c.typ != F32 { // which other pairs may tell first
		want = []string{" f32", " " + c.typ.String(), "(message 2 from rank "}
	}
	for _, w := range want {
		if !strings.Contains(comm.Err().Error(), w) {
			return fmt.Errorf("rank %d: the group's error is %w; want %q", rank, comm.Err(), w)
		}
	}
	if c.typ == F32 && c.receives > 0 && c.sends > 0 && rank == c.to {
		var typed *mscclgo.Error
		if !errors.As(comm.Err(), &typed) || typed.Kind != mscclgo.ErrInvalid || typed.Rank != c.to || typed.Peer != c.from {
			return fmt.Errorf("rank %d: the group's error is %#v", rank, comm.Err())
		}
	}
	got := make([]byte, whole.Size())
	if err := gpu.CopyOut(got, whole); err != nil {
		return err
	}
	if diff := testcmp.Diff([][]byte{fill(behind), fill(behind)}, [][]byte{got[:behind], got[behind+end:]}); diff != "" {
		return fmt.Errorf("rank %d: what is beside the output was written (-want +got):\n%s", rank, diff)
	}
	return nil
}

// TestGroupIsNotAllToAllV has a rank send in a group what the other receives in an all-to-all with counts: ranks that
// make the two in different orders are told, though the messages are alike.
func TestGroupIsNotAllToAllV(t *testing.T) {
	testgroup.Run(t, 2, communicator.Options{Timeout: time.Minute}, func(ctx context.Context, comm *communicator.Communicator) error {
		r, err := New(ctx, comm, Options{})
		testerr.Check(t, err)
		s := testerr.Must(comm.Device().NewStream())(t)
		b, err := comm.Device().Alloc(8)
		if err == nil {
			err = r.LoadGroups(ctx)
		}
		testerr.Check(t, err)
		if comm.Rank() == 0 {
			err = r.Send(s, b, 4, U8, 1)
		} else {
			err = r.AllToAllV(s, b, nil, []uint64{0, 0}, []uint64{4, 0}, U8)
		}
		if err != nil && comm.Err() == nil {
			return err
		}
		<-comm.Done()
		const want = "rank 0 sends 4 u8 in a group to rank 1, which receives 4 u8 in a call of all ranks (message 0 from rank 0)"
		if got := comm.Err(); !errors.Is(got, mscclgo.ErrInvalid) || !strings.Contains(got.Error(), want) {
			return fmt.Errorf("the group's error is %w", got)
		}
		err = errors.Join(s.Synchronize(ctx), s.Close(), b.Close())
		_ = r.Close(ctx) // as the group has failed
		return err
	})
}
