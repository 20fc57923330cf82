package explore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

const waitSource = `#include <mscclgo/group.cuh>
extern "C" __global__ void await(mscclgo::GroupHandle group, const uint32_t* flag) {
  mscclgo::waitUntil(group.watch, [&] {
    return mscclgo::load<mscclgo::Scope::System, mscclgo::Order::Acquire>(flag) == 1;
  });
}
extern "C" __global__ void set(uint32_t* flag) {
  mscclgo::store<mscclgo::Scope::System, mscclgo::Order::Release>(flag, 1);
}`

// flags are words of which kernels wait for one each.
type flags struct {
	memory     *gpu.Buffer // of the host
	await, set *gpu.Kernel
	group      any
	stream     *gpu.Stream
	used       int
}

func newFlags(ctx context.Context, comm *communicator.Communicator) (*flags, error) {
	module, err := devicecode.Load(ctx, comm.Device(), "await.cu", []byte(waitSource), devicecode.Options{})
	if err != nil {
		return nil, err
	}
	f := &flags{}
	var errs [5]error
	f.await, errs[0] = module.Kernel("await")
	f.set, errs[1] = module.Kernel("set")
	f.memory, errs[2] = comm.Device().AllocHost(64)
	f.stream, errs[3] = comm.NewStream()
	f.group, errs[4] = comm.Group(ctx)
	return f, errors.Join(errs[:]...)
}

// next launches a kernel that waits for the word that it returns.
func (f *flags) next() (*gpu.Buffer, error) {
	word, err := f.memory.Slice(uint64(4*f.used), 4)
	if err != nil {
		return nil, err
	}
	f.used++
	return word, f.await.Launch(f.stream, gpu.Blocks(1, 2), f.group, word)
}

// TestHostWrites has a host write what a kernel waits for, and then wait for the kernel.
func TestHostWrites(t *testing.T) {
	query := func(f *flags) error {
		for {
			if done, err := f.stream.Query(); done || err != nil {
				return err
			}
		}
	}
	store := func(_ *flags, word *gpu.Buffer) error {
		word.Bytes()[0] = 1
		return nil
	}
	for name, write := range map[string]func(*flags, *gpu.Buffer) error{
		"copy":  func(_ *flags, word *gpu.Buffer) error { return gpu.CopyIn(word, []byte{1, 0, 0, 0}) },
		"store": store,
		"query": func(f *flags, word *gpu.Buffer) error { return errors.Join(store(f, word), query(f)) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := range number(t, 6) {
				o, err := run(t, schedule(n), 1, func(ctx context.Context, comm *communicator.Communicator) error {
					f, err := newFlags(ctx, comm)
					if err != nil {
						return err
					}
					for range 3 {
						word, err := f.next()
						if err != nil {
							return err
						}
						_, err = f.stream.Query() // meanwhile the kernel looks in vain
						if err := errors.Join(err, write(f, word), f.stream.Synchronize(ctx)); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil || o.Ended != "" || len(o.Uncontrolled) > 0 {
					t.Fatalf("schedule %d: %v, %q", n, err, o.Uncontrolled)
				}
			}
		})
	}
}

// TestOwnWait has a kernel wait, by the group's Watch, for what never comes: no channel and no other rank is blamed.
func TestOwnWait(t *testing.T) {
	o, err := run(t, schedule(0), 2, func(ctx context.Context, comm *communicator.Communicator) error {
		f, err := newFlags(ctx, comm)
		if err == nil {
			_, err = f.next()
		}
		return errors.Join(err, f.stream.Synchronize(ctx))
	})
	if err == nil || !strings.HasPrefix(o.Ended, "deadlock, nothing can go on") || !strings.Contains(o.Ended, "rank 1: 2 threads, from 0 on, of block 0 of await waiting for a flag or packet of a rank that its Watch does not name") {
		t.Errorf("%v, %q", err, o.Ended)
	}
}

// TestOutside has a goroutine that is not a rank's launch on a stream that the rank has used, and
// the rank wait for what that kernel writes.
func TestOutside(t *testing.T) {
	for n := range number(t, 3) {
		o, err := run(t, schedule(n), 1, func(ctx context.Context, comm *communicator.Communicator) error {
			f, err := newFlags(ctx, comm)
			if err != nil {
				return err
			}
			other, err := comm.NewStream()
			if err != nil {
				return err
			}
			if err := errors.Join(f.set.Launch(other, gpu.Blocks(1, 64), f.memory), other.Synchronize(ctx)); err != nil {
				return err
			}
			f.used++
			word, err := f.next()
			if err != nil {
				return err
			}
			failed := make(chan error)
			go func() { failed <- f.set.Launch(other, gpu.Blocks(1, 64), word) }()
			return errors.Join(<-failed, f.stream.Synchronize(ctx), other.Synchronize(ctx))
		})
		if err != nil || o.Ended != "" || len(o.Uncontrolled) != 1 {
			t.Fatalf("schedule %d: %v, %q, %q", n, err, o.Ended, o.Uncontrolled)
		}
	}
}

// TestDeadlines has hosts wait with a deadline that has passed: it ends no wait, and what would end
// by nothing else is a deadlock.
func TestDeadlines(t *testing.T) {
	passed, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for n := range number(t, 12) {
		o, err := run(t, schedule(n), 1, func(ctx context.Context, comm *communicator.Communicator) error {
			f, err := newFlags(ctx, comm)
			if err != nil {
				return err
			}
			service, err := comm.ProxyService(ctx, proxyservice.ServiceOptions{})
			if err != nil {
				return err
			}
			word, err := f.next()
			if err != nil {
				return err
			}
			if n%2 == 0 {
				err = gpu.CopyIn(word, []byte{1, 0, 0, 0})
			}
			return errors.Join(err, f.stream.Synchronize(passed), service.Stop(passed), service.Close())
		})
		if deadlock := strings.Contains(o.Ended, "deadlock"); deadlock != (n%2 == 1) || !deadlock && err != nil {
			t.Fatalf("schedule %d: %q, %v", n, o.Ended, err)
		}
	}
}
