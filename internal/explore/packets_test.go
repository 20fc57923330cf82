package explore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
)

const (
	packetCount = 16 // words of a part
	packetCalls = 2  // of each collective, of which the second begins beside the first
)

// packetCases are all collectives by packets.
func packetCases() (calls []collective.Call) {
	for kind := collective.AllReduce; kind <= collective.Scatter; kind++ {
		for _, algorithm := range kind.Algorithms() {
			if strings.Contains(algorithm, "LL") {
				calls = append(calls, collective.Call{
					Kind: kind, Type: collective.I32, Op: collective.Sum, Count: packetCount, Root: 1, Overlap: true,
					Choice: collective.Choice{Algorithm: algorithm, Blocks: 1, Threads: 32},
				})
			}
		}
	}
	return calls
}

// packetWord is word i of a part of a rank's input for a call: no two calls have the same, so that one
// that takes what another has sent, or leaves what another has left, is wrong.
func packetWord(number, rank, part, i int) uint32 {
	return uint32(10_000*(number+1) + 1000*(rank+1) + 100*part + i)
}

// packetRank runs collectives one after the other, and checks what each leaves.
func packetRank(calls []collective.Call) func(context.Context, *communicator.Communicator) error {
	return func(ctx context.Context, comm *communicator.Communicator) error {
		runner, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return err
		}
		defer runner.Close(ctx)
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		words := make([]byte, 4*packetCount*comm.Size())
		var in, out [packetCalls]*collective.Memory
		for _, memories := range []*[packetCalls]*collective.Memory{&in, &out} {
			for i := range memories {
				buffer, err := gpu.Upload(comm.Device(), words)
				if err != nil {
					return err
				}
				if memories[i], err = runner.Share(ctx, buffer); err != nil {
					return err
				}
			}
		}
		for number, call := range calls {
			var operations [packetCalls]*collective.Operation
			for i := range operations {
				for part := range comm.Size() {
					for k := range packetCount {
						binary.LittleEndian.PutUint32(words[4*(part*packetCount+k):], packetWord(number*packetCalls+i, comm.Rank(), part, k))
					}
				}
				call.In, call.Out = in[i], out[i]
				err := errors.Join(gpu.CopyIn(in[i].Buffer, words), gpu.CopyIn(out[i].Buffer, make([]byte, len(words))))
				if err == nil {
					operations[i], err = runner.Prepare(ctx, call)
				}
				if err != nil {
					return err
				}
			}
			for _, operation := range operations {
				if err := operation.Launch(stream); err != nil {
					return err
				}
			}
			err := stream.Synchronize(ctx)
			for i := range operations {
				if err == nil {
					err = gpu.CopyOut(words, out[i].Buffer)
				}
				if err == nil {
					err = checkPackets(call, number*packetCalls+i, comm.Rank(), comm.Size(), words)
				}
			}
			if err != nil {
				return fmt.Errorf("%v by %s: %w", &call, call.Algorithm, err)
			}
		}
		return comm.Barrier(ctx)
	}
}

// checkPackets finds what a call should leave in a rank's output.
func checkPackets(call collective.Call, number, rank, ranks int, words []byte) error {
	kind := call.Kind
	if (kind == collective.Reduce || kind == collective.Gather) && rank != call.Root {
		return nil
	}
	for part := range kind.OutParts(ranks) {
		from, theirs := kind.Internal().Sources(rank, part, ranks, call.Root)
		for i := range packetCount {
			want := uint32(0)
			for _, source := range from {
				want += packetWord(number, source, theirs, i)
			}
			if got := binary.LittleEndian.Uint32(words[4*(part*packetCount+i):]); got != want {
				return fmt.Errorf("call %d: word %d of part %d is %d, want %d", number, i, part, got, want)
			}
		}
	}
	return nil
}

// TestPackets runs all collectives by packets in many schedules, each of them in each run: a group
// takes longer to begin than a collective of a few packets.
func TestPackets(t *testing.T) {
	calls := packetCases()
	different := orderings{}
	steps := uint64(0)
	schedules := 67 * len(explore.Schedulers)
	if testing.Short() {
		schedules = 4 * len(explore.Schedulers)
	}
	for _, p := range plans(number(t, fewer(schedules))) {
		o, err := run(t, p, 2, packetRank(calls))
		if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
			t.Fatalf("seed %d (%s): %v, %q", p.Seed, p.Scheduler, err, o.Uncontrolled)
		}
		steps += o.Steps
		different.add(p, o)
	}
	different.check(t)
	t.Logf("%d collectives, %d steps", len(calls), steps)
}
