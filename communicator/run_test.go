package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// A launcher sets the environment; here the example does, for a group of one rank.
func ExampleRun() {
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rendezvous.Close()
	for name, value := range map[string]string{
		bootstrap.EnvID: rendezvous.ID().String(), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
	} {
		os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = communicator.Run(ctx, communicator.Options{Device: "emu"}, func(ctx context.Context, comm *communicator.Communicator) error {
		_, err := fmt.Printf("rank %d of %d on %v\n", comm.Rank(), comm.Size(), comm.Device())
		return err
	})
	fmt.Println(err)
	// Output:
	// rank 0 of 1 on emu:0
	// <nil>
}

// TestRunTogetherFails has one rank's error end the others and name its rank.
func TestRunTogetherFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	spoilt := errors.New("spoilt")
	err := communicator.RunTogether(ctx, devices, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		if comm.Rank() == 1 {
			return spoilt
		}
		return comm.Barrier(ctx)
	})
	if !errors.Is(err, spoilt) || !strings.Contains(err.Error(), "rank 1: spoilt") || !strings.Contains(err.Error(), "rank 0: ") {
		t.Errorf("got %v", err)
	}
}

// TestRunTogetherExits has FailNow of a test end a rank's function: the others are told why, and
// nothing of the rank is left.
func TestRunTogetherExits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var left *communicator.Communicator
	err := communicator.RunTogether(ctx, []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		if comm.Rank() == 1 {
			left = comm
			runtime.Goexit()
		}
		err := comm.Barrier(ctx)
		testerr.Expect(t, err, mscclgo.ErrAborted, "rank 1 failed", "runtime.Goexit")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "rank 1: its function was ended by runtime.Goexit") {
		t.Errorf("got %v", err)
	}
	testerr.Expect(t, left.Barrier(ctx), mscclgo.ErrInvalid, "the communicator is closed")
}

// TestRunPanics has a rank's function panic, which its caller recovers: the others are told at once.
func TestRunPanics(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	defer func() {
		if p := recover(); p != "spoilt" {
			t.Errorf("recovered %v", p)
		}
		testerr.Expect(t, comms[0].Barrier(t.Context()), mscclgo.ErrAborted, "rank 1 failed", "its function panicked: spoilt")
	}()
	communicator.RunRank(t.Context(), comms[1], func(context.Context, *communicator.Communicator) error { panic("spoilt") })
}

// TestTime gets one time on all ranks, and what queueing fails by.
func TestTime(t *testing.T) {
	var times [2]time.Duration
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		stream := testerr.Must(comm.Device().NewStream())(t)
		defer stream.Close()
		data := testerr.Must(comm.Device().Alloc(uint64(1+comm.Rank()) << 20))(t)
		times[comm.Rank()] = testerr.Must(comm.Time(ctx, stream, func() error { return stream.Fill(data, 0, 1, data.Size()) }))(t)
		spoilt := errors.New("spoilt")
		if _, err := comm.Time(ctx, stream, func() error { return spoilt }); !errors.Is(err, spoilt) {
			return fmt.Errorf("got %v", err)
		}
		var nothing func() error
		want := mscclgo.ErrInvalid
		if comm.Rank() == 1 {
			nothing, want = func() error { return nil }, mscclgo.ErrRemote
		}
		if _, err := comm.Time(ctx, stream, nothing); !errors.Is(err, want) {
			return fmt.Errorf("rank 0 has no function: %v", err)
		}
		return nil
	})
	if times[0] <= 0 || times[0] != times[1] {
		t.Errorf("the times are %v", times)
	}
}
