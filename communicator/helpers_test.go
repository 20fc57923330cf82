package communicator_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
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

//go:embed communicator_test.cu
var source []byte

// The results of waits, as wait.cuh numbers them.
const (
	done     = 0
	timedOut = 1
	aborted  = 2
)

// ranks returns bootstraps of a new group of this process.
func ranks(t testing.TB, n int) []*bootstrap.Bootstrap {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", quiet))(t)
	t.Cleanup(func() { rendezvous.Close() })
	boots := make([]*bootstrap.Bootstrap, n)
	var wg sync.WaitGroup
	for i := range boots {
		wg.Go(func() {
			var err error
			boots[i], err = bootstrap.Connect(t.Context(), bootstrap.Options{Rank: i, Size: n, ID: rendezvous.ID()})
			if err != nil {
				t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { // together, since a rank's Close waits for the others
		var wg sync.WaitGroup
		for _, b := range boots {
			wg.Go(func() { b.Close() })
		}
		wg.Wait()
	})
	return boots
}

// group returns n communicators on devices of their own. They and all below them
// are closed when the test ends.
func group(t testing.TB, n int, o communicator.Options) []*communicator.Communicator {
	t.Helper()
	return groupWith(t, slices.Repeat([]communicator.Options{o}, n))
}

// groupWith is group with options for each rank.
func groupWith(t testing.TB, o []communicator.Options) []*communicator.Communicator {
	t.Helper()
	return groupOn(t, devices(t, len(o)), o)
}

// devices opens n devices.
func devices(t testing.TB, n int) []*gpu.Device {
	t.Helper()
	all := make([]*gpu.Device, n)
	for i := range all {
		all[i] = testdev.Open(t, i)
	}
	return all
}

// groupOn is group with devices and options for each rank.
func groupOn(t testing.TB, devices []*gpu.Device, o []communicator.Options) []*communicator.Communicator {
	t.Helper()
	boots := make([]communicator.Bootstrap, len(o))
	for i, b := range ranks(t, len(o)) {
		boots[i] = b
	}
	return groupOver(t, boots, devices, o)
}

// groupOver is groupOn with bootstraps too, which stay open.
func groupOver(t testing.TB, boots []communicator.Bootstrap, devices []*gpu.Device, o []communicator.Options) []*communicator.Communicator {
	t.Helper()
	comms := make([]*communicator.Communicator, len(o))
	each(t, len(o), func(i int) (err error) {
		comms[i], err = communicator.New(t.Context(), boots[i], devices[i], o[i])
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() { closeAll(t, comms) })
	return comms
}

// closeAll closes communicators together, since a rank's Close waits for the
// others'.
func closeAll(t testing.TB, comms []*communicator.Communicator) {
	t.Helper()
	each(t, len(comms), func(i int) error { return comms[i].Close() })
}

// each calls f for every rank at the same time. Errors are the test's.
func each(t testing.TB, n int, f func(rank int) error) {
	t.Helper()
	for i, err := range outcomes(t, n, f) {
		if err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// patience bounds what the ranks do together, so that a deadlock is a failed
// test.
const patience = 3 * time.Minute

// outcomes calls f for every rank at the same time and returns the errors.
func outcomes(t testing.TB, n int, f func(rank int) error) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(patience):
		t.Fatalf("the ranks have not ended after %v", patience)
	}
	return errs
}

// failing fails the test unless err is of the kind and its text holds all parts.
func failing(t testing.TB, rank int, err error, kind mscclgo.Kind, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("rank %d: %v; want %v", rank, err, kind)
		return
	}
	var e *mscclgo.Error
	if !errors.As(err, &e) {
		t.Errorf("rank %d: %T holds no *mscclgo.Error", rank, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("rank %d: %q does not say %q", rank, err, part)
		}
	}
}

// worker is what a rank launches kernels with.
type worker struct {
	comm    *communicator.Communicator
	module  *gpu.Module
	stream  *gpu.Stream
	results *gpu.Buffer // of waits
}

const mostResults = 64

func newWorker(ctx context.Context, c *communicator.Communicator) (*worker, error) {
	w := &worker{comm: c}
	var err error
	if w.module, err = devicecode.Load(ctx, c.Device(), "communicator_test.cu", source, devicecode.Options{}); err != nil {
		return nil, err
	}
	if w.stream, err = c.Device().NewStream(); err != nil {
		return nil, err
	}
	w.results, err = gpu.Upload(c.Device(), make([]uint32, mostResults))
	return w, err
}

// workers returns a worker for each rank, and closes them with the test.
func workers(t testing.TB, comms []*communicator.Communicator) []*worker {
	t.Helper()
	all := make([]*worker, len(comms))
	each(t, len(comms), func(i int) (err error) {
		all[i], err = newWorker(t.Context(), comms[i])
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, w := range all {
			w.close()
		}
	})
	return all
}

func (w *worker) close() error {
	return errors.Join(w.stream.Close(), w.module.Close(), w.results.Close())
}

// launch queues a kernel; the results' buffer is its last argument.
func (w *worker) launch(kernel string, blocks, threads int, args ...any) error {
	k, err := w.module.Kernel(kernel)
	if err != nil {
		return err
	}
	return k.Launch(w.stream, gpu.Blocks(blocks, threads), append(args, w.results)...)
}

// run is launch and Synchronize. It fails if a wait did not end as done.
func (w *worker) run(ctx context.Context, kernel string, threads int, args ...any) error {
	if err := w.launch(kernel, 1, threads, args...); err != nil {
		return err
	}
	if err := w.comm.Synchronize(ctx, w.stream); err != nil {
		return err
	}
	return w.want(done)
}

// want checks how the waits of the last kernel ended: all in the same way.
func (w *worker) want(result uint32, more ...uint32) error {
	got := make([]uint32, mostResults)
	if err := gpu.CopyOut(got, w.results); err != nil {
		return err
	}
	want := make([]uint32, mostResults)
	copy(want, append([]uint32{result}, more...))
	if diff := testcmp.Diff(want, got); diff != "" {
		return fmt.Errorf("how the waits ended (-want +got):\n%s", diff)
	}
	return nil
}

// ended returns the exit status of a child and prints its error.
func ended(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(ended(joinChild()))
	}
	if os.Getenv(splitEnv) != "" {
		os.Exit(ended(splitChild()))
	}
	if mode := os.Getenv(matchEnv); mode != "" {
		os.Exit(ended(matchChild(mode)))
	}
	if name := os.Getenv(verdictEnv); name != "" {
		os.Exit(ended(verdictChild(name)))
	}
	if file := os.Getenv(lossyEnv); file != "" {
		os.Exit(ended(lossyChild(file)))
	}
	if os.Getenv(silentHostEnv) != "" {
		os.Exit(ended(silentHostChild()))
	}
	if file := os.Getenv(narrowEnv); file != "" {
		os.Exit(ended(narrowChild(file)))
	}
	if os.Getenv(traceEnv) != "" {
		os.Exit(ended(traceChild()))
	}
	os.Exit(m.Run())
}
