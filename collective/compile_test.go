package collective_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

// TestFailsWhileCompiling has the group fail while a rank compiles the kernels of its call, or
// of calls to come, which does not wait for the compiler.
func TestFailsWhileCompiling(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the compiler of emulated devices is held up")
	}
	t.Run("a call", func(t *testing.T) {
		testFailsWhileCompiling(t, func(_ context.Context, r *splitRun) error {
			return r.runner.AllReduce(r.stream, r.data, r.data, 1000, collective.I32, collective.Sum)
		})
	})
	t.Run("calls to come", func(t *testing.T) {
		testFailsWhileCompiling(t, func(ctx context.Context, r *splitRun) error {
			call := collective.Call{Kind: collective.AllReduce, Type: collective.I32, Op: collective.Sum, Count: 1000,
				Choice: collective.Choice{Algorithm: "direct", Blocks: 1, Threads: 32}}
			return errors.Join(r.runner.Internal().Compile(ctx, []collective.Call{call}), r.child.Err())
		})
	})
}

func testFailsWhileCompiling(t *testing.T, compiles func(context.Context, *splitRun) error) {
	dir := t.TempDir()
	begun := filepath.Join(dir, "begun")
	compiler := filepath.Join(dir, "compiler")
	testerr.Check(t, os.WriteFile(compiler, []byte("#!/bin/sh\ntouch "+begun+"\nexec sleep 60\n"), 0o700))
	t.Setenv("MSCCLGO_CACHE", filepath.Join(dir, "cache"))
	testgroup.Run(t, 2, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		r, err := newSplitRun(ctx, comm, 0, 1000)
		testerr.Check(t, err)
		if comm.Rank() == 0 {
			t.Setenv("CXX", compiler)
		}
		testerr.Check(t, comm.Barrier(ctx))
		if comm.Rank() == 1 {
			for {
				if _, err := os.Stat(begun); err == nil {
					r.child.Abort(errors.New("enough"))
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		start := time.Now()
		err = compiles(ctx, r)
		if err == nil || !errors.Is(err, mscclgo.KindOf(r.child.Err())) {
			t.Errorf("rank %d: the call returned %v", comm.Rank(), err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("rank %d: the call took %v", comm.Rank(), took)
		}
		return errors.Join(r.runner.Close(ctx), r.child.Close(), r.stream.Close(), r.data.Close())
	})
}
