package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/launcher"
)

func TestMatchCall(t *testing.T) {
	const calls = 20_000
	comms := group(t, 3, communicator.Options{})
	each(t, len(comms), func(rank int) error {
		for i := range calls {
			if err := comms[rank].MatchCall([]string{"all-reduce", "broadcast", ""}[i%3]); err != nil {
				return err
			}
		}
		return comms[rank].Barrier(t.Context())
	})
}

// TestMatchCallDiffers has rank 2 make another call than the others, whose kernels
// wait for it.
func TestMatchCallDiffers(t *testing.T) {
	const number = 41
	comms := group(t, 3, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	waiting(t, comms, all, 2, 0, 1)
	each(t, len(comms), func(rank int) error {
		for range number - 1 {
			if err := comms[rank].MatchCall("barrier"); err != nil {
				return err
			}
		}
		return nil
	})
	start := time.Now()
	const odd, even = "reduce-scatter of 512 f32, sum", "all-reduce of 1024 f32, sum"
	testerr.Report(t, comms[2].MatchCall(odd))
	err := comms[0].MatchCall(even)
	failing(t, 0, err, mscclgo.ErrInvalid, "rank 0, peer 2", "call 41: rank 2 makes "+odd+"; this rank "+even)
	errs := outcomes(t, 3, func(rank int) error {
		if rank < 2 {
			return comms[rank].Synchronize(t.Context(), all[rank].stream)
		}
		<-comms[2].Done()
		return comms[2].Err()
	})
	within(t, start)
	failing(t, 0, errs[0], mscclgo.ErrInvalid, "call 41")
	for _, rank := range []int{1, 2} {
		failing(t, rank, errs[rank], mscclgo.ErrInvalid, "rank 0 failed", "call 41: rank 2 makes "+odd)
		failing(t, rank, comms[rank].MatchCall(even), mscclgo.ErrInvalid, "rank 0 failed")
	}
	failing(t, 0, comms[0].MatchCall(even), mscclgo.ErrInvalid, "call 41")
	for _, rank := range []int{0, 1} {
		if err := all[rank].want(aborted); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestMatchCallOdd has one of four ranks make another call, first, last or together with
// the others, which all name it.
func TestMatchCallOdd(t *testing.T) {
	const odd = 2
	for _, when := range []string{"first", "last", "together"} {
		t.Run(when, func(t *testing.T) {
			comms := group(t, 4, communicator.Options{})
			errs := outcomes(t, len(comms), func(rank int) error {
				c := comms[rank]
				if err := c.MatchCall("all-reduce"); err != nil {
					return err
				}
				if (rank == odd) == (when == "last") {
					time.Sleep(30 * time.Millisecond)
				}
				text := "all-reduce"
				if rank == odd {
					text = "broadcast"
				}
				if err := c.MatchCall(text); err != nil {
					return err
				}
				<-c.Done()
				return c.Err()
			})
			for rank, err := range errs {
				if rank != odd {
					failing(t, rank, err, mscclgo.ErrInvalid, "peer 2", "broadcast")
				} else if err == nil {
					t.Errorf("rank %d has no error", rank)
				}
			}
		})
	}
}

// TestMatchCallTogether has all ranks differ at the same moment: at least all but
// the first find it.
func TestMatchCallTogether(t *testing.T) {
	for round := range 20 {
		comms := group(t, 3, communicator.Options{})
		found := 0
		for rank, err := range outcomes(t, 3, func(rank int) error { return comms[rank].MatchCall(fmt.Sprint("call of ", rank)) }) {
			if err != nil {
				found++
				if !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrRemote) {
					t.Errorf("round %d, rank %d: %v", round, rank, err)
				}
			}
		}
		if found < 2 {
			t.Errorf("round %d: %d of 3 ranks found that their calls differ", round, found)
		}
	}
}

func TestMatchCallClosed(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	var wg sync.WaitGroup
	for rank, c := range comms {
		wg.Go(func() {
			for {
				if err := c.MatchCall("sum"); err != nil {
					failing(t, rank, err, mscclgo.ErrInvalid, "the communicator is closed")
					return
				}
			}
		})
	}
	closeAll(t, comms)
	wg.Wait()
	for rank, c := range comms {
		if err := c.Err(); err != nil {
			t.Errorf("rank %d: the group failed: %v", rank, err)
		}
	}
}

func TestMatchCallAllocates(t *testing.T) {
	c := group(t, 1, communicator.Options{})[0]
	if n := testing.AllocsPerRun(1000, func() { c.MatchCall("all-reduce of 1024 f32, sum") }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func BenchmarkMatchCall(b *testing.B) {
	for _, n := range []int{1, 2} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			comms := group(b, n, communicator.Options{})
			b.ReportAllocs()
			b.ResetTimer()
			each(b, n, func(rank int) error {
				for range b.N {
					if err := comms[rank].MatchCall("all-reduce of 1024 f32, sum"); err != nil {
						return err
					}
				}
				return nil
			})
			b.StopTimer()
		})
	}
}

// matchEnv makes the test's program a rank of TestMatchCallProcesses; its value is
// what the ranks do.
const matchEnv = "MSCCLGO_TEST_MATCH"

// The ranks of hosts of their own take their host's identity from their number.
var matchModes = map[string]struct {
	hosts bool // each rank is a host of its own
	do    func(ctx context.Context, c *communicator.Communicator) error
	want  string // in what rank 0 or 1 says
}{
	"alike": {do: func(ctx context.Context, c *communicator.Communicator) error {
		return matchCalls(c, 50_000, "sum")
	}},
	"alike on hosts": {hosts: true, do: func(ctx context.Context, c *communicator.Communicator) error {
		for range 6 {
			if err := matchCalls(c, 10_000, "sum"); err != nil {
				return err
			}
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}},
	"differ":          {do: differInLast, want: "call 101: rank"},
	"differ on hosts": {hosts: true, want: "call 101: rank", do: differInLast},
	"differ before a barrier": {hosts: true, want: "call 1: rank", do: func(ctx context.Context, c *communicator.Communicator) error {
		return errors.Join(c.MatchCall(fmt.Sprint("call of ", c.Rank())), c.Barrier(ctx))
	}},
	// Rank 1 is ahead by more calls than are kept, and rank 0 differs in an old one.
	"differ when behind": {hosts: true, want: "or one before it", do: func(ctx context.Context, c *communicator.Communicator) error {
		if c.Rank() == 1 {
			return errors.Join(matchCalls(c, 100_000, "sum"), awaitFailure(c))
		}
		time.Sleep(time.Second)
		return errors.Join(c.MatchCall("max"), matchCalls(c, 99_999, "sum"), awaitFailure(c))
	}},
	"dies": {want: "rank 1 failed", do: func(ctx context.Context, c *communicator.Communicator) error {
		if c.Rank() == 1 {
			matchCalls(c, 1000, "sum")
			os.Exit(0)
		}
		for {
			if err := c.MatchCall("sum"); err != nil {
				return err
			}
		}
	}},
}

func matchCalls(c *communicator.Communicator, n int, text string) error {
	for range n {
		if err := c.MatchCall(text); err != nil {
			return err
		}
	}
	return nil
}

func differInLast(ctx context.Context, c *communicator.Communicator) error {
	return errors.Join(matchCalls(c, 100, "sum"), c.MatchCall(fmt.Sprint("call of ", c.Rank())), awaitFailure(c))
}

// awaitFailure returns the group's error.
func awaitFailure(c *communicator.Communicator) error {
	select {
	case <-c.Done():
		return c.Err()
	case <-time.After(soon):
		return errors.New("the group has not failed")
	}
}

// matchChild is what a rank of TestMatchCallProcesses does.
func matchChild(name string) error {
	mode := matchModes[name]
	if mode.hosts {
		os.Setenv("MSCCLGO_HOST_ID", "host "+os.Getenv("RANK"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := communicator.Join(ctx, communicator.Options{Device: "emu"})
	if err != nil {
		return err
	}
	return errors.Join(mode.do(ctx, c), c.Close())
}

func TestMatchCallProcesses(t *testing.T) {
	if kind, _, _ := strings.Cut(testdev.Name(t, 0), ":"); kind != "emu" {
		t.Skip("the board is the host's alone")
	}
	program := testerr.Must(os.Executable())(t)
	for name, mode := range matchModes {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var output bytes.Buffer
			_, err := launcher.Run(ctx, launcher.Options{
				Ranks: 2, Program: program, Stdout: &output, Stderr: &output, Env: []string{matchEnv + "=" + name},
			})
			if (err == nil) != (mode.want == "") {
				t.Errorf("the ranks ended with %v\n%s", err, &output)
			}
			if !strings.Contains(output.String(), mode.want) {
				t.Errorf("no rank says %q:\n%s", mode.want, &output)
			}
		})
	}
}
