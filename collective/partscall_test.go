package collective_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestPartsCall fails a group with the error of a call in a part of the group, whose ranks have other numbers.
// The rank whose call failed is to blame on all ranks, also on a rank outside that part.
func TestPartsCall(t *testing.T) {
	const ranks, culprit = 4, 2
	for what, call := range map[string]func(context.Context, *collective.Runner, *gpu.Buffer, bool) error{
		"prepared": func(ctx context.Context, r *collective.Runner, b *gpu.Buffer, wrong bool) error {
			m, err := r.Share(ctx, b)
			if err != nil {
				return err
			}
			c := collective.Call{Kind: collective.AllReduce, Type: collective.F32, Count: 16, Out: m, InPlace: true}
			if wrong {
				c.Out = nil
			}
			_, err = r.Prepare(ctx, c)
			return err
		},
		"memory": func(ctx context.Context, r *collective.Runner, b *gpu.Buffer, wrong bool) error {
			if wrong {
				b = nil
			}
			_, err := r.Share(ctx, b)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			devices := make([]*gpu.Device, ranks)
			for i := range devices {
				devices[i] = testdev.Open(t, i)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := communicator.RunTogether(ctx, devices, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
				me := comm.Rank()
				color := 0
				if me == 0 {
					color = 1
				}
				part, err := comm.Split(ctx, color, ranks-me) // rank 3 is the first
				if err != nil {
					return err
				}
				runner, err := collective.New(ctx, part, collective.Options{})
				if err != nil {
					return err
				}
				b, err := comm.Device().Alloc(64)
				if err != nil {
					return err
				}
				defer func() { _ = errors.Join(runner.Close(ctx), part.Close(), b.Close()) }() // of a group that has failed
				if me == 3 {
					err := call(ctx, runner, b, false)
					comm.Abort(fmt.Errorf("the first to know: %w", err))
				} else if me != 0 {
					_ = call(ctx, runner, b, me == culprit)
				}
				select {
				case <-comm.Done():
				case <-ctx.Done():
				}
				var typed *mscclgo.Error
				switch err := comm.Err(); {
				case !errors.As(err, &typed):
					t.Errorf("rank %d: %v", me, err)
				case me != culprit && typed.Peer != culprit, me == culprit && typed.Peer != mscclgo.NoRank:
					t.Errorf("rank %d blames rank %d: %v", me, typed.Peer, err)
				}
				return comm.Err()
			})
			if err == nil {
				t.Error("the group did not fail")
			}
		})
	}
}

// TestLateAfterTimeout has a call that begins once the other rank has given it up, and is in the next one: what
// the two say differs then, but that rank's wait is what failed.
func TestLateAfterTimeout(t *testing.T) {
	const late = 1
	devices := []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var over *gpu.Event // behind the first rank's call
	ready := make(chan struct{})
	err := communicator.RunTogether(ctx, devices, communicator.Options{Timeout: time.Second}, func(ctx context.Context, comm *communicator.Communicator) (err error) {
		runner, err := collective.New(ctx, comm, collective.Options{})
		if err != nil {
			return err
		}
		in, err := comm.Device().Alloc(64)
		if err != nil {
			return err
		}
		out, err := comm.Device().Alloc(64)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		e, err := comm.Device().NewEvent()
		if err != nil {
			return err
		}
		defer func() { _ = errors.Join(e.Close(), stream.Close(), runner.Close(ctx), in.Close(), out.Close()) }() // of a group that has failed
		call := func(count uint64) error {
			counts := []uint64{count, count}
			return runner.AllToAllV(stream, out, in, counts, counts, collective.U8)
		}
		for count := range uint64(3) { // the first calls, which prepare
			if err := errors.Join(call(count+1), comm.Synchronize(ctx, stream)); err != nil {
				t.Error(err)
				return err
			}
		}
		if comm.Rank() == late {
			<-ready
			for done := false; !done && err == nil; done, err = over.Query() {
				time.Sleep(time.Millisecond)
			}
			err = errors.Join(err, call(4))
		} else {
			err = errors.Join(call(4), stream.Record(e), call(5))
			over = e
			close(ready)
		}
		err = errors.Join(err, comm.Synchronize(ctx, stream))
		if err == nil && comm.Rank() == late {
			err = comm.Barrier(ctx) // all that it received was there before the other's next call began
		}
		want := late
		if comm.Rank() == late {
			want = mscclgo.NoRank
		}
		var typed *mscclgo.Error
		if !errors.As(err, &typed) || typed.Peer != want || strings.Contains(err.Error(), "sends") {
			t.Errorf("rank %d: %v, which is to blame rank %d", comm.Rank(), err, want)
		}
		return err
	})
	if err == nil {
		t.Error("the group did not fail")
	}
}
