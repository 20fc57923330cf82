package collective_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestTrace finds the calls of all ranks in a timeline: their launches, the exchanges of
// packets of small ones, and the barriers or rounds of large ones with their arrows.
func TestTrace(t *testing.T) {
	const ranks = 2
	path := filepath.Join(t.TempDir(), "trace.json")
	testgroup.Run(t, ranks, communicator.Options{Trace: path}, func(ctx context.Context, comm *communicator.Communicator) error {
		runner := testerr.Must(collective.New(ctx, comm, collective.Options{}))(t)
		stream := testerr.Must(comm.NewStream())(t)
		for _, count := range []uint64{100, 1 << 22} { // by packets and, over any link, by a kernel that waits
			in := testerr.Must(gpu.Upload(comm.Device(), make([]float32, count)))(t)
			out := testerr.Must(comm.Device().Alloc(in.Size()))(t)
			testerr.Check(t, errors.Join(runner.AllReduce(stream, out, in, count, collective.F32, collective.Sum), stream.Synchronize(ctx)))
		}
		return errors.Join(stream.Close(), runner.Close(ctx))
	})
	text := testerr.Must(os.ReadFile(path))(t)
	var trace struct {
		TraceEvents []struct {
			Ph, Name, Cat string
			Pid           int
		}
	}
	testerr.Check(t, json.Unmarshal(text, &trace))
	var launches, packets [ranks]int
	waits, arrows := 0, 0
	for _, e := range trace.TraceEvents {
		switch {
		case e.Cat == "launch":
			launches[e.Pid]++
		case e.Name == "exchange of packets":
			packets[e.Pid]++
		case e.Name == "barrier" && e.Ph == "X", e.Cat == "kernel" && e.Name == "wait for all", e.Cat == "kernel" && e.Name == "wait for 0", e.Cat == "kernel" && e.Name == "wait for 1":
			waits++
		case e.Cat == "arrow" && e.Ph == "f":
			arrows++
		}
	}
	if launches[0] < 2 || launches[0] != launches[1] || packets[0] == 0 || packets[0] != packets[1] || waits == 0 || arrows != waits {
		t.Errorf("there are %v launches, %v exchanges of packets, %d waits and %d arrows", launches, packets, waits, arrows)
	}
	t.Logf("%v launches, %v exchanges of packets, %d waits, %d bytes", launches, packets, waits, len(text))
}
