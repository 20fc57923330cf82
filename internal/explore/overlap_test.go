package explore_test

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
)

//go:embed testdata/overlap.cu
var overlap []byte

// overlapThreads are those of a launch of overlap.cu.
const overlapThreads = 40

// overlapped returns a rank that launches the two kernels of a case, in a graph if captured is set.
func overlapped(name string, mended, captured bool) func(context.Context, *communicator.Communicator) error {
	var options devicecode.Options
	if mended {
		options.Defines = []string{"MENDED"}
	}
	return func(ctx context.Context, comm *communicator.Communicator) error {
		module, err := devicecode.Load(ctx, comm.Device(), "overlap.cu", overlap, options)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		data := make([]byte, 4*overlapThreads)
		results, err := gpu.Upload(comm.Device(), data)
		if err != nil {
			return err
		}
		for i := range overlapThreads {
			binary.LittleEndian.PutUint32(data[4*i:], uint32(i+1))
		}
		words, err := gpu.Upload(comm.Device(), data)
		if err != nil {
			return err
		}
		shape := gpu.Blocks(2, overlapThreads/2)
		shape.Overlap = true
		launch := func() error {
			for _, half := range []string{"1", "2"} {
				kernel, err := module.Kernel(name + half)
				if err == nil {
					err = kernel.Launch(stream, shape, words, results)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
		if captured {
			if err := errors.Join(stream.BeginCapture(), launch()); err != nil {
				return err
			}
			graph, err := stream.EndCapture()
			if err != nil {
				return err
			}
			defer graph.Close()
			launch = func() error { return graph.Launch(stream) }
		}
		if err := errors.Join(launch(), stream.Synchronize(ctx), gpu.CopyOut(data, results)); err != nil {
			return err
		}
		for i := range overlapThreads {
			if got := binary.LittleEndian.Uint32(data[4*i:]); got != uint32(i+2) {
				return fmt.Errorf("result %d is %d", i, got)
			}
		}
		return nil
	}
}

// TestOverlap finds what goes wrong where a kernel does not wait for the one before it, and nothing
// where it does.
func TestOverlap(t *testing.T) {
	for _, name := range []string{"writtenTooEarly", "readTooEarly"} {
		for _, captured := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, captured), func(t *testing.T) {
				found := slices.ContainsFunc(plans(schedules), func(p explore.Plan) bool {
					first, err := run(t, p, 1, overlapped(name, false, captured))
					if err != nil {
						t.Logf("seed %d: %s", p.Seed, first.Ended)
					}
					return err != nil && strings.Contains(first.Ended, "result ")
				})
				if !found {
					t.Errorf("not found in %d schedules", schedules)
				}
				for _, p := range plans(number(t, fewer(4*len(explore.Schedulers)))) {
					o, err := run(t, p, 1, overlapped(name, true, captured))
					if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
						t.Fatalf("mended, seed %d: %v, %q, %q", p.Seed, err, o.Ended, o.Uncontrolled)
					}
				}
			})
		}
	}
}
