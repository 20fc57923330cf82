package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// children splits communicators, whose rank r passes colors[r] and keys[r].
func children(t *testing.T, comms []*communicator.Communicator, colors, keys []int) []*communicator.Communicator {
	t.Helper()
	split := make([]*communicator.Communicator, len(comms))
	each(t, len(comms), func(rank int) (err error) {
		split[rank], err = comms[rank].Split(t.Context(), colors[rank], keys[rank])
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		each(t, len(comms), func(rank int) error {
			if split[rank] == nil {
				return nil
			}
			return split[rank].Close()
		})
	})
	return split
}

// meets has the ranks of a child wait for each other on the host and in a kernel.
func meets(ctx context.Context, w *worker, c *communicator.Communicator) error {
	buffer, err := c.Device().Alloc(1 << 12)
	if err != nil {
		return err
	}
	channels, err := c.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{})
	if err != nil {
		return err
	}
	if err := w.launch("meet", 1, c.Size(), channels.Handles); err != nil {
		return err
	}
	if err := c.Synchronize(ctx, w.stream); err != nil {
		return err
	}
	return errors.Join(w.want(done, make([]uint32, c.Size()-1)...), c.Barrier(ctx), channels.Close(), buffer.Close())
}

// TestSplit splits groups over either kind of bootstrap, and a child once more.
func TestSplit(t *testing.T) {
	for name, make := range map[string]func() []*communicator.Communicator{
		"bootstrap": func() []*communicator.Communicator { return group(t, 6, communicator.Options{}) },
		"own bootstrap": func() []*communicator.Communicator {
			_, comms := officeGroup(t, 6, communicator.Options{})
			return comms
		},
	} {
		t.Run(name, func(t *testing.T) {
			comms := make()
			all := workers(t, comms)
			// Ranks 4, 2, 0 in the order of their keys; 1 and 5, whose keys are equal.
			split := children(t, comms, []int{7, 3, 7, -1, 7, 3}, []int{5, -9, 0, 0, -5, -9})
			want := []string{"2 of 3", "0 of 2", "1 of 3", "none", "0 of 3", "1 of 2"}
			var got []string
			for _, c := range split {
				if c == nil {
					got = append(got, "none")
				} else {
					got = append(got, fmt.Sprintf("%d of %d", c.Rank(), c.Size()))
				}
			}
			if diff := testcmp.Diff(want, got); diff != "" {
				t.Fatalf("ranks of the children (-want +got):\n%s", diff)
			}
			each(t, len(comms), func(rank int) error {
				c := split[rank]
				if c == nil {
					return comms[rank].Barrier(t.Context())
				}
				if err := meets(t.Context(), all[rank], c); err != nil {
					return err
				}
				alone, err := c.Split(t.Context(), c.Rank(), 0)
				if err != nil {
					return err
				}
				if alone.Size() != 1 {
					return fmt.Errorf("a group of %d ranks", alone.Size())
				}
				return errors.Join(meets(t.Context(), all[rank], alone), alone.Close(), comms[rank].Barrier(t.Context()))
			})
		})
	}
}

// TestSplitOwnBootstrapOptions has children of a group whose bootstrap says nothing of silence and logs
// do as the group's options say.
func TestSplitOwnBootstrapOptions(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	_, comms := officeGroup(t, 2, communicator.Options{HeartbeatTimeout: -1, Logger: log})
	for rank, c := range children(t, comms, []int{0, 0}, []int{0, 0}) {
		o := c.Bootstrap().(*bootstrap.Bootstrap).Options()
		if o.HeartbeatTimeout != -1 || o.Logger != log {
			t.Errorf("rank %d: a heartbeat time-out of %v and the logger %p, want -1ns and %p", rank, o.HeartbeatTimeout, o.Logger, log)
		}
	}
}

// TestSplitFailsAlone aborts a child, then the parent, and has the others go on.
func TestSplitFailsAlone(t *testing.T) {
	comms := group(t, 4, communicator.Options{})
	all := workers(t, comms)
	split := children(t, comms, []int{0, 0, 1, 1}, make([]int, 4))
	cause := errors.New("the disk is full")
	split[0].Abort(cause)
	<-split[1].Done()
	failing(t, 1, split[1].Err(), mscclgo.ErrAborted, "the disk is full")
	each(t, 4, func(rank int) error { return comms[rank].Barrier(t.Context()) })
	comms[0].Abort(cause)
	for rank := range 4 {
		<-comms[rank].Done()
	}
	if _, err := comms[2].Split(t.Context(), 0, 0); err == nil {
		t.Error("a group that has failed was split")
	}
	each(t, 2, func(i int) error { return meets(t.Context(), all[2+i], split[2+i]) })
}

// TestSplitOneRankFails has one rank be unable to take part, and another give up.
func TestSplitOneRankFails(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for rank, err := range outcomes(t, 3, func(rank int) error {
		ctx := t.Context()
		if rank == 1 {
			ctx = over
		}
		_, err := comms[rank].Split(ctx, 0, 0)
		return err
	}) {
		if err == nil {
			t.Errorf("rank %d: split though rank 1 gave up", rank)
		}
	}
}

// TestSplitNamesRank has a rank fail while its child is made: the error of the other rank names it
// by its number in the group that was split.
func TestSplitNamesRank(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	testerr.Check(t, comms[1].Device().Close())
	all := outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].Split(t.Context(), min(rank, 1), 0)
		return err
	})
	for rank, want := range []int{mscclgo.NoRank, mscclgo.NoRank, 1} {
		var e *mscclgo.Error
		if rank == 0 && all[rank] == nil {
			continue // its child has no other rank
		}
		if !errors.As(all[rank], &e) || e.Peer != want {
			t.Errorf("rank %d: %v, which does not name rank %d", rank, all[rank], want)
		}
	}
}

// TestSplitFailsByParent has a rank fail while its child is made, and the parent fail right after: that is
// what another rank of the child is told, since the one may have come of the other.
func TestSplitFailsByParent(t *testing.T) {
	comms := group(t, 3, communicator.Options{})
	testerr.Check(t, comms[2].Device().Close())
	failed := make(chan struct{})
	all := outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].Split(t.Context(), min(rank, 1), 0)
		switch rank {
		case 2:
			close(failed)
		case 0:
			<-failed
			comms[0].Abort(errors.New("the cause"))
		}
		return err
	})
	if err := all[1]; err == nil || !strings.Contains(err.Error(), "the cause") {
		t.Errorf("rank 1: %v", err)
	}
}

// TestSplitClosedInAnyOrder closes the parent, its bootstrap and the device before the
// child, whose calls then fail.
func TestSplitClosedInAnyOrder(t *testing.T) {
	for _, order := range []string{"child parent device", "parent child device", "parent device child", "device parent child", "device child parent"} {
		t.Run(order, func(t *testing.T) {
			boots := ranks(t, 2)
			each(t, 2, func(rank int) error {
				dev, err := gpu.Open(testdev.Name(t, rank))
				if err != nil {
					return err
				}
				defer dev.Close()
				parent, err := communicator.New(t.Context(), boots[rank], dev, communicator.Options{})
				if err != nil {
					return err
				}
				child, err := parent.Split(t.Context(), 0, -rank)
				if err != nil {
					return err
				}
				if _, err := child.Group(t.Context()); err != nil {
					return err
				}
				closes := map[string]func() error{"child": child.Close, "parent": parent.Close, "device": dev.Close}
				for i, name := range strings.Fields(order) {
					err := closes[name]()
					if order == "child parent device" && err != nil {
						return fmt.Errorf("close %s: %w", name, err)
					}
					if i == 0 && name == "parent" {
						if err := child.Barrier(t.Context()); err != nil {
							return fmt.Errorf("the child after its parent: %w", err)
						}
					}
				}
				_, err = child.Group(t.Context())
				if err == nil {
					return errors.New("a closed child has a group")
				}
				return nil
			})
		})
	}
}

// splitEnv makes the test's program a rank of TestSplitRankDies.
const splitEnv = "MSCCLGO_TEST_SPLIT"

// splitChild splits a group of four in two, and rank 0 dies.
func splitChild() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	parent, err := communicator.Join(ctx, communicator.Options{Device: os.Getenv(splitEnv)})
	if err != nil {
		return err
	}
	child, err := parent.Split(ctx, parent.Rank()/2, 0)
	if err != nil {
		return err
	}
	if err := parent.Barrier(ctx); err != nil {
		return err
	}
	if parent.Rank() == 0 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	await := func(c *communicator.Communicator) error {
		select {
		case <-c.Done():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("rank %d of %d has not noticed that rank 0 died", c.Rank(), c.Size())
		}
	}
	if err := await(parent); err != nil {
		return err
	}
	if parent.Rank() == 1 {
		return errors.Join(await(child), child.Close(), parent.Close())
	}
	w, err := newWorker(ctx, child)
	if err != nil {
		return err
	}
	for range 3 {
		if err := meets(ctx, w, child); err != nil {
			return fmt.Errorf("the child without the rank that died: %w", err)
		}
	}
	return errors.Join(child.Err(), w.close(), child.Close(), parent.Close())
}

// TestSplitRankDies kills a rank: only the child that has it fails.
func TestSplitRankDies(t *testing.T) {
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", nil))(t)
	defer rendezvous.Close()
	if _, err := devicecode.Load(t.Context(), testdev.Open(t, 0), "communicator_test.cu", source, devicecode.Options{}); err != nil {
		t.Fatal(err) // so that the ranks find it in the cache
	}
	for rank, err := range outcomes(t, 4, func(rank int) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience-5*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), splitEnv+"="+kind, bootstrap.EnvID+"="+rendezvous.ID().String(),
			fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=4", fmt.Sprintf("LOCAL_RANK=%d", rank), "LOCAL_WORLD_SIZE=4")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, &out)
		}
		return nil
	}) {
		switch {
		case rank == 0 && (err == nil || !strings.Contains(err.Error(), "killed")):
			t.Errorf("rank 0: %v, not killed", err)
		case rank > 0 && err != nil:
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
