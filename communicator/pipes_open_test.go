package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// lazyToAllOthers is toAllOthers of lazy pipes.
func lazyToAllOthers(rank, n int) communicator.PipeOptions {
	o := toAllOthers(rank, n)
	o.Shared, o.Lazy = false, true
	return o
}

// ways are how pipes move their messages.
var ways = map[string]struct {
	transport registeredmem.Transports
	ports     bool
}{
	"mapped":     {registeredmem.CudaIPC, false},
	"ports":      {registeredmem.CudaIPC, true},
	"SHM":        {registeredmem.SHM, true},
	"Ethernet":   {registeredmem.Ethernet, true},
	"InfiniBand": {registeredmem.InfiniBand, true},
}

// services makes a proxy service of each rank, or none. The caller closes them, ahead of pipes that were used.
func services(t testing.TB, comms []*communicator.Communicator, ports bool) []*proxyservice.ProxyService {
	t.Helper()
	all := make([]*proxyservice.ProxyService, len(comms))
	if !ports {
		return all
	}
	each(t, len(comms), func(rank int) (err error) {
		all[rank], err = comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{})
		return err
	})
	return all
}

// TestLazyPipes makes pipes among all ranks, which cost nothing but handles. Two ranks open theirs and send
// each other messages while the third does nothing; then all open all, in an order of their own.
func TestLazyPipes(t *testing.T) {
	const n, length = 3, 600_000
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			comms := groupWith(t, testgroup.Over(t, way.transport, n))
			all := workers(t, comms)
			options := make([]communicator.PipeOptions, n)
			need := make([]uint64, n)
			pipes := make([]*communicator.Pipes, n)
			first := services(t, comms, way.ports)
			each(t, n, func(rank int) error { // so that there is memory for handles
				p, err := comms[rank].Pipes(t.Context(), communicator.PipeOptions{Lazy: true, To: []int{(rank + 1) % n}, From: []int{(rank + n - 1) % n}, Service: first[rank]})
				return errors.Join(err, p.Close(), first[rank].Close())
			})
			remake := func(check bool) {
				proxies := services(t, comms, way.ports)
				before := take(t, comms)
				each(t, n, func(rank int) (err error) {
					options[rank] = lazyToAllOthers(rank, n)
					options[rank].Service, options[rank].Ports = proxies[rank], way.ports
					need[rank], err = comms[rank].PipeBytes(options[rank])
					return err
				})
				each(t, n, func(rank int) (err error) {
					pipes[rank], err = comms[rank].Pipes(t.Context(), options[rank])
					return err
				})
				if t.Failed() {
					t.FailNow()
				}
				if check {
					unopened(t, comms, pipes, before)
				}
				each(t, 2, func(rank int) error { // the third rank sleeps
					err := openOne(t, all[rank], pipes[rank], options[rank], 1-rank)
					return errors.Join(err, pool(comms[rank], need[rank]/2))
				})
				each(t, n, func(rank int) error {
					if err := pipes[rank].Open(t.Context(), (rank+1)%n, (rank+2)%n); err != nil {
						return err
					}
					if err := sendToAll(t.Context(), all[rank], pipes[rank], options[rank], length); err != nil {
						return err
					}
					return errors.Join(pool(comms[rank], need[rank]), proxies[rank].Close(), comms[rank].Barrier(t.Context()))
				})
				each(t, n, func(rank int) error {
					return errors.Join(pipes[rank].Close(), pipes[rank].Close(), pool(comms[rank], 0))
				})
				if t.Failed() {
					t.FailNow()
				}
			}
			remake(true)
			before := take(t, comms)
			for range 10 {
				remake(false)
			}
			take(t, comms).grown(t, before)
		})
	}
}

// openOne opens the pipes to and from one peer, which does so too, and passes a message each way.
func openOne(t *testing.T, w *worker, p *communicator.Pipes, o communicator.PipeOptions, peer int) error {
	if err := p.Open(t.Context(), peer, peer); err != nil {
		return err
	}
	for _, other := range o.To {
		if is, want := p.To(0, other) != nil, other == peer; is != want || is != (p.From(0, other) != nil) {
			return fmt.Errorf("with rank %d opened, pipes to rank %d are open: %v", peer, other, is)
		}
	}
	data := upload(t, w.comm.Device(), byte(w.comm.Rank()+1), 2*700)
	defer data.Close()
	to, from := uint32(slices.Index(o.To, peer)), uint32(slices.Index(o.From, peer))
	if err := w.run(t.Context(), "passTo", 32, p.Set(), data, 700, to, from); err != nil {
		return err
	}
	return errors.Join(holds(data, 700, byte(peer+1)), p.Open(t.Context(), peer))
}

// unopened fails the test if lazy pipes have more than handles.
func unopened(t *testing.T, comms []*communicator.Communicator, pipes []*communicator.Pipes, before usage) {
	t.Helper()
	now := take(t, comms)
	for rank, c := range comms {
		// A handle has less than 512 bytes; besides, what they wait for.
		if most := uint64(2*(len(comms)-1)*512 + 256); now.arena[rank]-before.arena[rank] > most {
			t.Errorf("rank %d: pipes take %d bytes of the arenas, want %d at most", rank, now.arena[rank]-before.arena[rank], most)
		}
		if s, err := c.PipePool(); err != nil || s != (channel.PipePoolStats{}) {
			t.Errorf("rank %d: the memory of shared pipes says %+v (%v)", rank, s, err)
		}
		for peer := range comms {
			if pipes[rank].To(0, peer) != nil || pipes[rank].From(0, peer) != nil {
				t.Errorf("rank %d: pipes to or from rank %d are open", rank, peer)
			}
		}
	}
	for end := time.Now().Add(10 * time.Second); now.files > before.files || now.goroutines > before.goroutines; now.look(t) {
		if time.Now().After(end) {
			t.Fatalf("%d files are open, before %d, and %d goroutines run, before %d", now.files, before.files, now.goroutines, before.goroutines)
		}
		runtime.Gosched()
	}
}

// TestLazyPipesAlone opens pipes that the peer does not open in time, and then opens them on both ranks.
func TestLazyPipesAlone(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	pipes := make([]*communicator.Pipes, 2)
	each(t, 2, func(rank int) (err error) {
		pipes[rank], err = comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 2))
		return err
	})
	for _, rank := range []int{0, 0, 1} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := pipes[rank].Open(ctx, 1-rank)
		cancel()
		failing(t, rank, err, mscclgo.ErrTimeout, fmt.Sprintf("open pipes to and from rank %d", 1-rank), fmt.Sprintf("rank %d, peer %d", rank, 1-rank), "each of the two names the other in Open")
		testerr.Report(t, pool(comms[rank], 0))
	}
	each(t, 2, func(rank int) error {
		if err := pipes[rank].Open(t.Context(), 1-rank); err != nil {
			return err
		}
		o := toAllOthers(rank, 2)
		return errors.Join(sendToAll(t.Context(), all[rank], pipes[rank], o, 5000), comms[rank].Barrier(t.Context()), pipes[rank].Close())
	})
}

// TestLazyPipesOfOneRank has pipes of a rank to itself, which many goroutines open at once, and no other rank does.
func TestLazyPipesOfOneRank(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	for _, ports := range []bool{false, true} {
		proxies := services(t, comms, ports)
		each(t, 2, func(rank int) error {
			o := communicator.PipeOptions{Lazy: true, Ports: ports, Service: proxies[rank], PerPeer: 2}
			if rank == 0 {
				o.To, o.From = []int{0}, []int{0}
			}
			p, err := comms[rank].Pipes(t.Context(), o)
			if err != nil || rank != 0 {
				return errors.Join(err, proxies[rank].Close())
			}
			errs := make([]error, 8)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = p.Open(t.Context(), 0) })
			}
			wg.Wait()
			need, err := comms[rank].PipeBytes(o)
			if err != nil {
				return err
			}
			data := upload(t, comms[0].Device(), 7, 2*700)
			return errors.Join(errors.Join(errs...), pool(comms[0], need), all[0].run(t.Context(), "passOn", 32, p.Set(), data, 700), holds(data, 700, 7), proxies[rank].Close(), p.Close(), pool(comms[0], 0))
		})
	}
}

// TestLazyPipesFail has the memory of a rank too small for its pipes: both ranks that open them hear of it at
// once, nothing stays, and a third rank opens its own.
func TestLazyPipesFail(t *testing.T) {
	const n = 3
	options := make([]communicator.Options, n)
	options[1].PipePool = 2 << 20
	comms := groupWith(t, options)
	pipes := make([]*communicator.Pipes, n)
	each(t, n, func(rank int) (err error) {
		o := lazyToAllOthers(rank, n)
		o.Size = channel.PipeSize{Slots: 16, SlotBytes: 128 << 10}
		pipes[rank], err = comms[rank].Pipes(t.Context(), o)
		return err
	})
	for range 2 {
		errs := outcomes(t, 2, func(rank int) error { return pipes[rank].Open(t.Context(), 1-rank) })
		failing(t, 0, errs[0], mscclgo.ErrRemote, "rank 0, peer 1", "its part failed", "the pool of shared pipes is too small")
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "the pool of shared pipes is too small", "Options.PipePool, which is 2097152")
		each(t, 2, func(rank int) error { return pool(comms[rank], 0) })
	}
	each(t, n, func(rank int) error {
		if rank == 1 {
			return nil
		}
		return pipes[rank].Open(t.Context(), 2-rank)
	})
	each(t, n, func(rank int) error {
		return errors.Join(comms[rank].Barrier(t.Context()), pipes[rank].Close(), pool(comms[rank], 0))
	})
}

// TestLazyPipesOwnRanks has the caller use the slice of ranks for something else before it opens pipes.
func TestLazyPipesOwnRanks(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	each(t, n, func(rank int) error {
		r := [][]int{{1}, {0}, nil}[rank]
		p, err := comms[rank].Pipes(t.Context(), communicator.PipeOptions{Lazy: true, To: r, From: r})
		if err != nil || rank == 2 {
			return errors.Join(err, comms[rank].Barrier(t.Context()), p.Close())
		}
		r[0] = 2
		for _, none := range []*communicator.Pipes{nil, new(communicator.Pipes)} {
			failing(t, mscclgo.NoRank, none.Open(t.Context(), 1), mscclgo.ErrInvalid, "the pipes are nil")
			testerr.Report(t, none.Close())
		}
		failing(t, rank, p.Open(t.Context(), 2), mscclgo.ErrInvalid, "there are no pipes")
		return errors.Join(p.Open(t.Context(), 1-rank), comms[rank].Barrier(t.Context()), p.Close())
	})
}

// TestLazyPipesRegister has the registration of a rank's buffer fail once: both ranks hear of it, and the next
// Open tries again.
func TestLazyPipesRegister(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	full := mscclgo.Errorf(mscclgo.ErrSystem, "register", "the table is full")
	each(t, 2, func(rank int) error {
		o := communicator.PipeOptions{Lazy: true, To: []int{0, 1}, From: []int{0, 1}, Buffer: upload(t, comms[rank].Device(), 0, 4096)}
		p, err := comms[rank].Pipes(t.Context(), o)
		if err != nil {
			return err
		}
		var fails error // of rank 0 only
		if rank == 0 {
			fails = full
		}
		registered := communicator.FailRegistration(p, fails)
		kind := []mscclgo.Kind{mscclgo.ErrSystem, mscclgo.ErrRemote}[rank]
		failing(t, rank, p.Open(t.Context(), 1-rank), kind, "the table is full")
		err = errors.Join(p.Open(t.Context(), 1-rank), p.Open(t.Context(), rank))
		if n := registered.Load(); n != 1 {
			t.Errorf("rank %d: the buffer was registered %d times", rank, n)
		}
		return errors.Join(err, comms[rank].Barrier(t.Context()), p.Close())
	})
}

// TestLazyPipesServiceFull has a rank whose service has no room for its ends: the other's has room for a third
// rank's, however often both tried.
func TestLazyPipesServiceFull(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	pipes, proxies := make([]*communicator.Pipes, n), make([]*proxyservice.ProxyService, n)
	each(t, n, func(rank int) (err error) {
		o := lazyToAllOthers(rank, n)
		o.PerPeer, o.Ports = 1, true
		if proxies[rank], err = comms[rank].ProxyService(t.Context(), proxyservice.ServiceOptions{MaxConnections: []int{4, 1, 4}[rank]}); err != nil {
			return err
		}
		o.Service = proxies[rank]
		pipes[rank], err = comms[rank].Pipes(t.Context(), o)
		return err
	})
	for range 8 {
		errs := outcomes(t, 2, func(rank int) error { return pipes[rank].Open(t.Context(), 1-rank) })
		failing(t, 0, errs[0], mscclgo.ErrRemote, "rank 0, peer 1", "its part failed", "the service has 1 connections")
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "the service has 1 connections; raise ServiceOptions.MaxConnections")
	}
	each(t, n, func(rank int) error {
		var err error
		if rank != 1 {
			err = pipes[rank].Open(t.Context(), 2-rank)
		}
		return errors.Join(err, proxies[rank].Close(), comms[rank].Barrier(t.Context()), pipes[rank].Close(), pool(comms[rank], 0))
	})
}

// TestLazyPipesHalf has an Open end when the peer may have gone on: this rank's ends keep their memory, as the
// peer's kernels may write there, until the pipes are closed.
func TestLazyPipesHalf(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	pipes := make([]*communicator.Pipes, 2)
	var need uint64
	each(t, 2, func(rank int) (err error) {
		o := lazyToAllOthers(rank, 2)
		if rank == 0 {
			if need, err = comms[rank].PipeBytes(o); err != nil {
				return err
			}
		}
		pipes[rank], err = comms[rank].Pipes(t.Context(), o)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	each(t, 2, func(rank int) error {
		if rank == 1 {
			defer cancel()
			return communicator.OpenHalf(t.Context(), pipes[1], 0)
		}
		failing(t, 0, pipes[0].Open(ctx, 1), mscclgo.ErrAborted, "communicator: open pipes to and from rank 1 (rank 0, peer 1)", "it has not told that its part is done")
		return pool(comms[0], need)
	})
	each(t, 2, func(rank int) error { return errors.Join(pipes[rank].Close(), pool(comms[rank], 0)) })
}

// missed is a bootstrap that calls a function when the parts of both ranks of an Open are done, and passes on the next
// time that the peer's is.
type missed struct {
	*bootstrap.Bootstrap
	end  func()
	sent chan struct{} // closed when this rank has told that its part is done
	kept []byte
}

// isDone reports whether a message tells that a part of an Open is done, behind the two numbers.
func isDone(tag uint64, b []byte) bool { return tag>>62 == 3 && len(b) > 16 && b[16] == 1 }

func (m *missed) Send(ctx context.Context, peer int, tag uint64, b []byte) error {
	err := m.Bootstrap.Send(ctx, peer, tag, b)
	if isDone(tag, b) && m.end != nil {
		close(m.sent)
	}
	return err
}

func (m *missed) Recv(ctx context.Context, peer int, tag uint64) ([]byte, error) {
	if tag>>62 == 3 && m.kept != nil {
		b := m.kept
		m.kept = nil
		return b, nil
	}
	b, err := m.Bootstrap.Recv(ctx, peer, tag)
	if isDone(tag, b) && m.end != nil {
		<-m.sent
		m.end()
		m.end, m.kept = nil, b
		<-ctx.Done()
		return nil, mscclgo.FromContext(ctx, "receive", "")
	}
	return b, err
}

// TestLazyPipesOneSide has the context of one rank's Open end as the other rank's Open works. The next Open works
// at once, though the other rank takes no part.
func TestLazyPipesOneSide(t *testing.T) {
	boots := ranks(t, 2)
	first := &missed{Bootstrap: boots[0]}
	o := communicator.Options{Timeout: soon}
	comms := groupOver(t, []communicator.Bootstrap{first, boots[1]}, devices(t, 2), []communicator.Options{o, o})
	all := workers(t, comms)
	for _, ports := range []bool{false, true} {
		proxies, pipes := services(t, comms, ports), make([]*communicator.Pipes, 2)
		each(t, 2, func(rank int) (err error) {
			p := lazyToAllOthers(rank, 2)
			p.Ports, p.Service = ports, proxies[rank]
			pipes[rank], err = comms[rank].Pipes(t.Context(), p)
			return err
		})
		ctx, cancel := context.WithCancel(t.Context())
		first.end, first.sent = cancel, make(chan struct{})
		errs := outcomes(t, 2, func(rank int) error {
			if rank == 0 {
				return pipes[0].Open(ctx, 1)
			}
			return pipes[1].Open(t.Context(), 0)
		})
		failing(t, 0, errs[0], mscclgo.ErrAborted, "it has not told that its part is done")
		if errs[1] != nil {
			t.Errorf("rank 1: %v", errs[1])
		}
		testerr.Check(t, pipes[0].Open(t.Context(), 1))
		each(t, 2, func(rank int) error {
			o := toAllOthers(rank, 2)
			return errors.Join(sendToAll(t.Context(), all[rank], pipes[rank], o, 5000), comms[rank].Barrier(t.Context()), proxies[rank].Close(), pipes[rank].Close())
		})
	}
}

// TestLazyPipesInACircle has each rank open the pipes to the next alone: the errors tell of the circle. Then each opens
// all at once.
func TestLazyPipesInACircle(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{Timeout: verdictTimeout})
	pipes := make([]*communicator.Pipes, n)
	each(t, n, func(rank int) (err error) {
		pipes[rank], err = comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, n))
		return err
	})
	for rank, err := range outcomes(t, n, func(rank int) error { return pipes[rank].Open(t.Context(), (rank+1)%n) }) {
		failing(t, rank, err, mscclgo.ErrTimeout, "wait for each other", "Open, a call that the two make on the host", "which takes several ranks")
	}
	each(t, n, func(rank int) error {
		return errors.Join(pipes[rank].Open(t.Context(), (rank+1)%n, (rank+2)%n), comms[rank].Barrier(t.Context()), pipes[rank].Close())
	})
}

// TestLazyPipesHalfAborted has a third rank fail while one waits for the other's part: that one is to blame.
func TestLazyPipesHalfAborted(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	pipes := make([]*communicator.Pipes, n)
	each(t, n, func(rank int) (err error) {
		pipes[rank], err = comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, n))
		return err
	})
	half := make(chan bool)
	each(t, n, func(rank int) error {
		switch rank {
		case 0:
			err := pipes[0].Open(t.Context(), 1)
			failing(t, 0, err, mscclgo.ErrAborted, "out of flour")
			if e := (*mscclgo.Error)(nil); !errors.As(err, &e) || e.Peer != 2 {
				t.Errorf("the error blames another rank than 2: %v", err)
			}
		case 1:
			defer close(half)
			return communicator.OpenHalf(t.Context(), pipes[1], 0)
		case 2:
			<-half
			comms[2].Abort(errors.New("out of flour"))
		}
		return nil
	})
	for _, p := range pipes {
		testerr.Report(t, p.Close())
	}
}

// TestLazyPipesClosed closes pipes while an Open waits, which finds nothing of them left.
func TestLazyPipesClosed(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	each(t, 2, func(rank int) error {
		p, err := comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 2))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		waiting := make(chan error)
		go func() { waiting <- p.Open(ctx, 1-rank) }()
		closed := p.Close()
		err = <-waiting
		if !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrTimeout) && err != nil { // nil if both were faster
			return err
		}
		failing(t, rank, p.Open(t.Context(), 1-rank), mscclgo.ErrInvalid, "the pipes are closed")
		return errors.Join(closed, comms[rank].Barrier(t.Context()), p.Close(), pool(comms[rank], 0))
	})
}

// TestLazyPipesClosedByPeer has a rank open its pipes to one that has closed them, or closes them meanwhile, and to one
// that has not and opens its own later. It hears of the first at once.
func TestLazyPipesClosedByPeer(t *testing.T) {
	for _, later := range []bool{false, true} {
		comms := group(t, 3, communicator.Options{Timeout: soon})
		pipes := make([]*communicator.Pipes, 3)
		each(t, 3, func(rank int) error {
			before, err := comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 3))
			if err = errors.Join(err, before.Close()); err != nil {
				return err
			}
			pipes[rank], err = comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 3))
			return err
		})
		if t.Failed() {
			return
		}
		gone := make(chan error, 1)
		begun := time.Now()
		go func() {
			if later {
				time.Sleep(time.Second) // it has asked
			}
			gone <- pipes[1].Close()
		}()
		if !later {
			if err := <-gone; err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			failing(t, 0, pipes[0].Open(t.Context(), 1), mscclgo.ErrRemote, "rank 0, peer 1", "its pipes are closed")
		}
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("it took %v to hear of it", took)
		}
		each(t, 3, func(rank int) error {
			if rank == 1 {
				return nil
			}
			return errors.Join(pipes[rank].Open(t.Context(), 2-rank), pipes[rank].Close())
		})
		if later {
			if err := <-gone; err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLazyPipesAborted fails the group while a rank waits for another to open its pipes: it hears of that at once.
func TestLazyPipesAborted(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	cause := errors.New("out of flour")
	each(t, 2, func(rank int) error {
		p, err := comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 2))
		if err != nil {
			return err
		}
		if rank == 1 {
			time.Sleep(50 * time.Millisecond)
			comms[1].Abort(cause)
		} else {
			begun := time.Now()
			failing(t, 0, p.Open(t.Context(), 1), mscclgo.ErrAborted, "out of flour", "rank 1")
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %v to hear of it", took)
			}
		}
		failing(t, rank, p.Open(t.Context(), 1-rank), mscclgo.KindOf(comms[rank].Err()), "out of flour")
		return p.Close()
	})
}

// TestLazyPipesUnopened has a kernel use a pipe that is not open. The group's error says so.
func TestLazyPipesUnopened(t *testing.T) {
	for _, sends := range []bool{true, false} {
		comms := group(t, 2, communicator.Options{Timeout: time.Second})
		errs := outcomes(t, 2, func(rank int) error {
			p, err := comms[rank].Pipes(t.Context(), lazyToAllOthers(rank, 2))
			if err != nil {
				return err
			}
			w, err := newWorker(t.Context(), comms[rank])
			if err != nil || rank != 0 {
				return err
			}
			data := upload(t, comms[rank].Device(), 1, 1000)
			kernel := map[bool]string{true: "sendOnly", false: "recvOnly"}[sends]
			return errors.Join(w.launch(kernel, 1, 32, p.Set(), data, 1000), comms[rank].Synchronize(t.Context(), w.stream))
		})
		if testdev.CUDA() { // no checks are compiled
			failing(t, 0, errs[0], mscclgo.ErrTimeout, "'unopened pipe'", "rank 1")
		} else {
			what := map[bool]string{true: "send to", false: "receive from"}[sends]
			failing(t, 0, errs[0], mscclgo.ErrInvalid, what+" rank 1 by a pipe that is not open")
		}
	}
}

// TestWrongLazyPipes has ranks ask for what lazy pipes cannot be, and open pipes that there are not.
func TestWrongLazyPipes(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	for name, c := range map[string]struct {
		spoil func(o *communicator.PipeOptions) // of rank 1
		of    int
		want  []string
	}{
		"at one end": {func(o *communicator.PipeOptions) { o.Lazy, o.Shared = false, true }, 2, []string{"rank 2, peer 1", "its Lazy is false, this rank's true"}},
		"in a pool":  {func(o *communicator.PipeOptions) { o.Pool = upload(t, comms[1].Device(), 0, 6000) }, 1, []string{"rank 1", "and a pool is given"}},
		"one-sided":  {func(o *communicator.PipeOptions) { o.To = nil }, 2, []string{"rank 2, peer 1", "this rank receives from it, but is not in its To"}},
	} {
		refusedPipes(t, comms, name, communicator.PipeOptions{Lazy: true}, c.spoil, c.of, c.want)
	}
	each(t, n, func(rank int) error {
		for _, lazy := range []bool{false, true} {
			o := communicator.PipeOptions{Lazy: lazy}
			if rank < 2 {
				o.To, o.From = []int{1 - rank}, []int{1 - rank}
			}
			p, err := comms[rank].Pipes(t.Context(), o)
			if err != nil {
				return err
			}
			for _, peer := range []int{-1, 2, n} {
				failing(t, rank, p.Open(t.Context(), peer), mscclgo.ErrInvalid, fmt.Sprintf("open pipes to and from rank %d", peer), "there are no pipes")
			}
			if rank < 2 && !lazy { // they are open
				err = p.Open(t.Context(), 1-rank)
			}
			if err := errors.Join(err, comms[rank].Barrier(t.Context()), p.Close()); err != nil {
				return err
			}
		}
		return pool(comms[rank], 0)
	})
}

// TestLazyPipesInGraph captures a kernel that uses pipes before they are open, and launches the graph afterwards.
func TestLazyPipesInGraph(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	all := workers(t, comms)
	each(t, 2, func(rank int) error {
		w, c := all[rank], comms[rank]
		p, err := c.Pipes(t.Context(), lazyToAllOthers(rank, 2))
		if err != nil {
			return err
		}
		data := upload(t, c.Device(), byte(rank+1), 2*700)
		if err := errors.Join(w.stream.BeginCapture(), w.launch("passTo", 1, 32, p.Set(), data, 700, uint32(0), uint32(0))); err != nil {
			return err
		}
		graph, err := w.stream.EndCapture()
		if err != nil {
			return err
		}
		if err := p.Open(t.Context(), 1-rank); err != nil {
			return err
		}
		return errors.Join(graph.Launch(w.stream), c.Synchronize(t.Context(), w.stream), w.want(done), holds(data, 700, byte(2-rank)), graph.Close(), c.Barrier(t.Context()), p.Close())
	})
}

// TestManyLazyPipes has pipes between all pairs of many ranks. Each rank opens the pipes to its neighbours.
func TestManyLazyPipes(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("so many ranks that wait for each other do not fit on GPUs")
	}
	n := testgroup.Many(t)
	testgroup.Run(t, n, communicator.Options{}, func(ctx context.Context, c *communicator.Communicator) error {
		o, rank := lazyToAllOthers(c.Rank(), n), c.Rank()
		p := testerr.Must(c.Pipes(ctx, o))(t)
		need := testerr.Must(c.PipeBytes(o))(t)
		testerr.Check(t, p.Open(ctx, (rank+1)%n, (rank+n-1)%n))
		w := testerr.Must(newWorker(ctx, c))(t)
		data := testerr.Must(gpu.Upload(c.Device(), bytes.Repeat([]byte{byte(rank + 1)}, 2*700)))(t)
		testerr.Check(t, w.run(ctx, "passTo", 32, p.Set(), data, 700, uint32(0), uint32(0)))
		return errors.Join(holds(data, 700, byte((rank+n-1)%n+1)), pool(c, 2*need/uint64(n-1)), c.Barrier(ctx), w.close(), data.Close(), p.Close())
	})
}

// BenchmarkMakePipes makes pipes among 8 ranks, from each to all others, and tells how many descriptors they
// have; "opened" are lazy ones, and each rank opens the pipes to a neighbour.
func BenchmarkMakePipes(b *testing.B) {
	const n = 8
	for _, name := range []string{"mapped", "ports", "Ethernet"} {
		way := ways[name]
		for _, kind := range []string{"eager", "lazy", "opened"} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				comms := groupWith(b, testgroup.Over(b, way.transport, n))
				proxies := services(b, comms, way.ports)
				defer each(b, n, func(rank int) error { return proxies[rank].Close() })
				var before, after usage
				for b.Loop() {
					pipes := make([]*communicator.Pipes, n)
					before.look(b)
					each(b, n, func(rank int) (err error) {
						o := toAllOthers(rank, n)
						o.Lazy, o.Service, o.Ports = kind != "eager", proxies[rank], way.ports
						if pipes[rank], err = comms[rank].Pipes(b.Context(), o); err == nil && kind == "opened" {
							err = pipes[rank].Open(b.Context(), rank^1)
						}
						return err
					})
					after.look(b)
					b.StopTimer()
					each(b, n, func(rank int) error { return errors.Join(comms[rank].Barrier(b.Context()), pipes[rank].Close()) })
					b.StartTimer()
				}
				b.ReportMetric(float64(after.files-before.files), "files")
			})
		}
	}
}
