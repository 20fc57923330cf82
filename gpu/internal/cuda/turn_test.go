package cuda

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/nativetest"
)

// TestTurns: threads take turns at putting work on a GPU's streams. A thread that has waited
// for long goes on without its turn.
func TestTurns(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DTURNS")).Open(0))(t)
	closeAtEnd(t, d.Close)
	const threads, copies = 8, 100
	var together atomic.Int32
	var wg sync.WaitGroup
	for i := range threads {
		s := must(d.NewStream())(t)
		closeAtEnd(t, s.Close)
		copyOnce := func() bool { return s.Copy(4096, 8192, 20) == nil }
		if i%2 == 0 { // a thread in C
			q := s.Native()
			closeAtEnd(t, func() error { q.Close(); return nil })
			copyOnce = func() bool { return nativetest.Do(q, native.Write, 4096, 8192, 20) == 0 }
		}
		wg.Go(func() {
			for range copies {
				if !copyOnce() {
					together.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// A few may come together behind a thread that was stopped in its turn, on a machine
	// that is busy.
	if n := together.Load(); n > threads*copies/5 {
		t.Errorf("%d of %d copies were queued together with others", n, threads*copies)
	}

	slow, quick := must(d.NewStream())(t), must(d.NewStream())(t)
	closeAtEnd(t, slow.Close)
	closeAtEnd(t, quick.Close)
	const long = 2 * time.Second
	ended := make(chan error, 1)
	go func() { ended <- slow.Copy(4096, 8192, uint64(long.Microseconds())) }()
	time.Sleep(long / 10)
	check(t, quick.Copy(4096, 8192, 1))
	select {
	case err := <-ended:
		t.Errorf("a copy waited until another was queued, which took %v (error: %v)", long, err)
	default:
		check(t, <-ended)
	}
}

// TestManyStreams has kernels of several streams that wait for each other, and for what
// other streams copy, while all of that is launched by threads at the same time. There
// are more streams than the GPU has queues.
func TestManyStreams(t *testing.T) {
	const ranks, peers, rounds = 8, 7, 200
	d := openDevice(t, 0)
	if !d.Info().StreamMemoryOps {
		t.Skip("no stream memory operations here")
	}
	m := &meeting{
		kernel: must(loadKernels(t, d).Kernel("meet"))(t), ranks: ranks,
		state: alloc(t, d, 8*(2+ranks*peers)), data: alloc(t, d, 2*4096),
	}
	check(t, d.CopyFromHost(m.state.Ptr(), make([]byte, 8*(2+ranks*peers))))
	for range ranks {
		m.kernels = append(m.kernels, newMarked(t, d))
		var copies []marked
		for range peers {
			copies = append(copies, newMarked(t, d))
		}
		m.copies = append(m.copies, copies)
	}
	for round := range uint64(rounds) {
		start := make(chan struct{})
		errs := make(chan error, 2*ranks)
		for r := range ranks {
			args := [2][]byte{m.args(t, r, 2*round+1), m.args(t, r, 2*round+2)}
			go func() { <-start; errs <- m.launch(r, args) }()
			go func() { <-start; errs <- m.serve(r, 2*round+1) }()
		}
		close(start)
		for range 2 * ranks {
			check(t, <-errs)
		}
		for r := range ranks {
			finish(t, m.kernels[r])
			for _, s := range m.copies[r] {
				finish(t, s)
			}
		}
		if n := read64(t, d, m.late()); n > 0 {
			t.Fatalf("round %d: %d of %d kernels timed out", round, n, 2*ranks)
		}
	}
}

// meeting is kernels of ranks that wait until all of them run and each has what its
// own copies bring.
type meeting struct {
	kernel  backend.Kernel
	ranks   int
	state   backend.Memory // the count, how many were late, and the ranks' words
	data    backend.Memory
	kernels []marked
	copies  [][]marked
}

// marked is a stream with an event.
type marked struct {
	backend.Stream
	event backend.Event
}

func newMarked(t *testing.T, d *device) marked {
	m := marked{newStream(t, d), must(d.NewEvent())(t)}
	closeAtEnd(t, m.event.Close)
	return m
}

func (m *meeting) late() uint64 { return m.state.Ptr() + 8 }

// words returns the address of what a rank's copies bring.
func (m *meeting) words(rank int) uint64 {
	return m.state.Ptr() + 16 + uint64(8*rank*len(m.copies[0]))
}

func (m *meeting) args(t *testing.T, rank int, turn uint64) []byte {
	const limit = uint64(500 * time.Millisecond)
	return packed(t, m.kernel, m.state.Ptr(), turn*uint64(m.ranks), m.words(rank), uint64(len(m.copies[rank])),
		turn, limit, m.late())
}

// launch launches a rank's two kernels. What comes behind a kernel makes those wait
// that share its queue.
func (m *meeting) launch(rank int, args [2][]byte) error {
	s := m.kernels[rank]
	for _, a := range args {
		if err := errors.Join(s.Launch(m.kernel, blocks(1, 1), a), s.Record(s.event)); err != nil {
			return err
		}
	}
	return nil
}

// serve does what a rank's kernels wait for, in two turns.
func (m *meeting) serve(rank int, turn uint64) error {
	for end := turn + 2; turn < end; turn++ {
		for i, s := range m.copies[rank] {
			if err := errors.Join(s.Copy(m.data.Ptr()+4096, m.data.Ptr(), 4096),
				s.WriteValue64(m.words(rank)+uint64(8*i), turn), s.Record(s.event)); err != nil {
				return err
			}
		}
	}
	return nil
}
