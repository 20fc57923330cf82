package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// halfway joins as a rank that has the table and has not connected to any other, and
// returns what ends it as the end of its process would.
func halfway(t *testing.T, ctx context.Context, o Options) (die func()) {
	o.Logger = quiet
	j := joiner{o: o, member: o.ID.member(handshake.Clear), addrs: o.ID.addrs(), process: [16]byte{99}}
	_, nc, err := j.attempt(ctx)
	if err != nil {
		t.Errorf("rank %d: %v", o.Rank, err)
		return func() {}
	}
	return func() {
		nc.nc.Close()
		j.ln.Close()
	}
}

// formWithout connects a group of 12 in which victim gets no further than the table: it
// dies there, or is stopped until the others have ended. It returns their errors and how
// long they took.
func formWithout(t *testing.T, victim int, timeout time.Duration, dies bool) ([]error, time.Duration) {
	t.Helper()
	noLeaks(t)
	r := rendezvous(t, quiet)
	const size = 12
	ctx := testContext(t)
	var opts []Options
	for rank := range size {
		if rank != victim {
			opts = append(opts, Options{Rank: rank, Size: size, ID: r.ID(), Timeout: timeout})
		}
	}
	start := time.Now()
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		die := halfway(t, ctx, Options{Rank: victim, Size: size, ID: r.ID()})
		if !dies {
			<-over
		}
		die()
	})
	bs, errs := connectAll(ctx, opts)
	took := time.Since(start)
	close(over)
	closeAll(bs)
	wg.Wait()
	return errs, took
}

// wantCulprit checks that errs name a rank in text and as the peer.
func wantCulprit(t *testing.T, errs []error, kind mscclgo.Kind, culprit int) {
	t.Helper()
	for _, err := range errs {
		wantError(t, err, kind, fmt.Sprintf("rank %d", culprit))
		if e := (*mscclgo.Error)(nil); errors.As(err, &e) && e.Peer != culprit {
			t.Errorf("the peer is not rank %d: %v", culprit, err)
		}
	}
}

// A rank dies when it has the table and before it is connected: the root, an inner rank, a leaf. Or it is stopped there, and
// is what the others waited for when their time is up.
func TestEndBeforeTheFirstConnection(t *testing.T) {
	for what, test := range map[string]struct {
		timeout, most time.Duration
		kind          mscclgo.Kind
	}{
		"dies":    {15 * time.Second, 5 * time.Second, mscclgo.ErrRemote},
		"stopped": {2 * time.Second, time.Minute, mscclgo.ErrTimeout},
	} {
		for _, victim := range []int{0, 1, 7, 11} {
			t.Run(fmt.Sprint(what, victim), func(t *testing.T) {
				errs, took := formWithout(t, victim, test.timeout, what == "dies")
				wantCulprit(t, errs, test.kind, victim)
				if took > test.most {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// A rank's connection to the rendezvous breaks when it has the table. The rendezvous takes it for dead, and the
// others end: it does not wait for them until its time is up.
func TestRendezvousLostBeforeTheFirstConnection(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx := testContext(t)
	o := Options{Rank: 0, Size: 2, ID: r.ID(), HeartbeatTimeout: time.Second, Logger: quiet}
	other := make(chan func(), 1)
	go func() { other <- halfway(t, ctx, Options{Rank: 1, Size: 2, ID: r.ID()}) }()
	b, nc, err := join(ctx, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer (<-other)()
	raw := nc.nc.(*net.TCPConn)
	raw.CloseRead()
	raw.CloseWrite()
	start := time.Now()
	wantError(t, b.assemble(ctx, nc), mscclgo.ErrRemote, "the rendezvous considers this rank failed", "its connection to the rendezvous ended")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	b.Close()
}

// Two ranks are to dial something that is not an address.
func TestAddressThatDoesNotResolve(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	opts := make([]Options, 12)
	for i := range opts {
		opts[i] = Options{Rank: i, Size: len(opts), ID: r.ID()}
	}
	opts[1].Advertise = "no-such-host.invalid"
	start := time.Now()
	bs, errs := connectAll(testContext(t), opts)
	closeAll(bs)
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrRemote, "no-such-host.invalid")
	}
	wantCulprit(t, append(errs[:1:1], errs[2:]...), mscclgo.ErrRemote, 1)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A rank that came dies before the others come. They do not wait for it in vain.
func TestDeathAtTheRendezvous(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	nc := proved(t, r, 2)
	nc.Write(frame{kind: frameJoin, payload: joinMessage{size: 4, left: time.Minute, addr: "127.0.0.1:1"}.encode()}.encode())
	start := time.Now()
	time.AfterFunc(100*time.Millisecond, func() { nc.Close() })
	bs, errs := connectAll(testContext(t), []Options{{Rank: 0, Size: 4, ID: r.ID()}, {Rank: 1, Size: 4, ID: r.ID()}})
	closeAll(bs)
	wantCulprit(t, errs, mscclgo.ErrRemote, 2)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	_, err := Connect(testContext(t), Options{Rank: 3, Size: 4, ID: r.ID()})
	wantError(t, err, mscclgo.ErrRemote, "too late", "rank 2")
	start = time.Now()
	if r.awaitRefused(testContext(t), time.Minute); time.Since(start) > 30*time.Second {
		t.Error("rank 0 would wait until the dead rank has heard why the group cannot form")
	}
}

// starved is a listener that finds no descriptor for a dialer until it is closed.
type starved struct {
	net.Listener
	closed atomic.Bool
}

func (s *starved) Accept() (net.Conn, error) {
	if s.closed.Load() {
		return nil, net.ErrClosed
	}
	return nil, os.NewSyscallError("accept4", syscall.EMFILE)
}

func (s *starved) Close() error {
	s.closed.Store(true)
	return s.Listener.Close()
}

// A rank has no descriptor for the ranks that connect to it, or for its own dial: all name
// it, and nobody waits for the time-out.
func TestNoDescriptorsWhileTheGroupForms(t *testing.T) {
	for what, rank := range map[string]int{"to accept": 0, "to dial": 2} {
		t.Run(what, func(t *testing.T) {
			noLeaks(t)
			r := rendezvous(t, quiet)
			ctx := testContext(t)
			errs := make([]error, 3)
			var wg sync.WaitGroup
			for i := range errs {
				o := Options{Rank: i, Size: 3, ID: r.ID(), Timeout: time.Minute}
				if i != rank {
					wg.Go(func() {
						var b *Bootstrap
						if b, errs[i] = Connect(ctx, o); b != nil {
							b.Close()
						}
					})
					continue
				}
				wg.Go(func() {
					o.Logger = quiet
					j := joiner{o: o, member: o.ID.member(handshake.Clear), addrs: o.ID.addrs(), process: [16]byte{99}}
					table, nc, err := j.attempt(ctx)
					if err != nil {
						errs[i] = err
						return
					}
					if rank == 0 {
						j.ln = &starved{Listener: j.ln}
					}
					b := newBootstrap(o, j.member, table, j.ln, nil)
					defer b.Close()
					if rank == 0 {
						errs[i] = b.assemble(ctx, nc)
						return
					}
					dialed := make(chan error, 1)
					dialed <- mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "%w", os.NewSyscallError("socket", syscall.EMFILE)).At(i, 0)
					errs[i] = b.awaitAll(ctx, nc, dialed, nil)
					nc.close()
				})
			}
			start := time.Now()
			wg.Wait()
			for i, err := range errs {
				if i != rank {
					wantCulprit(t, []error{err}, mscclgo.ErrSystem, rank)
				} else if !errors.Is(err, syscall.EMFILE) {
					t.Errorf("rank %d: %v, want too many open files", i, err)
				}
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// die ends a rendezvous as the end of its process would.
func (r *Rendezvous) die() {
	r.acc.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		m.nc.Close()
	}
	r.closed = true
}

// freeID returns an id for a rendezvous that a rank opens.
func freeID(t *testing.T) UniqueID {
	t.Helper()
	probe := rendezvous(t, quiet)
	id, err := NewUniqueID(probe.ID().Addr())
	probe.Close()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// As above, when all have the table: rank 0 dies, and with it what would tell the others.
func TestDeathOfTheRendezvousAndItsRank(t *testing.T) {
	for range 5 {
		noLeaks(t)
		id := freeID(t)
		ctx := testContext(t)
		r, err := hostRendezvous(ctx, id, quiet)
		if err != nil {
			t.Fatal(err)
		}
		var opts []Options
		for rank := 1; rank < 12; rank++ {
			opts = append(opts, Options{Rank: rank, Size: 12, ID: id, Timeout: 15 * time.Second})
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			die := halfway(t, ctx, Options{Rank: 0, Size: 12, ID: id})
			r.die()
			die()
		})
		bs, errs := connectAll(ctx, opts)
		closeAll(bs)
		wg.Wait()
		r.Close()
		wantCulprit(t, errs, mscclgo.ErrRemote, 0)
	}
}

// A rendezvous dies with the process of the rank that holds it.
func TestDeathOfTheRendezvous(t *testing.T) {
	noLeaks(t)
	id := freeID(t)
	r, err := hostRendezvous(testContext(t), id, quiet)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for joined := 0; joined < 2; time.Sleep(time.Millisecond) {
			r.mu.Lock()
			joined = len(r.members)
			r.mu.Unlock()
		}
		r.die()
	}()
	start := time.Now()
	bs, errs := connectAll(testContext(t), []Options{{Rank: 1, Size: 3, ID: id}, {Rank: 2, Size: 3, ID: id}})
	closeAll(bs)
	wantCulprit(t, errs, mscclgo.ErrRemote, 0)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	r.Close()
}

// A refusal is heard by all ranks: a second rank of one number is not one of those
// that are still to come.
func TestRefusalIsHeardByAll(t *testing.T) {
	noLeaks(t)
	id := freeID(t)
	ctx := testContext(t)
	late := make(chan error)
	go func() {
		time.Sleep(500 * time.Millisecond)
		_, err := Connect(ctx, Options{Rank: 2, Size: 4, ID: id, Timeout: 10 * time.Second})
		late <- err
	}()
	bs, errs := connectAll(ctx, []Options{
		{Rank: 0, Size: 4, ID: id}, {Rank: 1, Size: 4, ID: id}, {Rank: 1, Size: 4, ID: id}, {Rank: 1, Size: 4, ID: id}})
	closeAll(bs)
	for _, err := range append(errs, <-late) {
		wantError(t, err, mscclgo.ErrInvalid, "two processes are rank 1")
	}
}

// A rank that comes when the group has given up learns when that was and what it waited for.
func TestTooLate(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	go func() { // its time is up
		await(t, "a rank comes", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 1 })
		r.mu.Lock()
		defer r.mu.Unlock()
		r.expire()
	}()
	_, err := Connect(testContext(t), Options{Rank: 0, Size: 3, ID: r.ID()})
	wantError(t, err, mscclgo.ErrTimeout, "2 of 3 ranks did not come: ranks 1-2")
	_, err = Connect(testContext(t), Options{Rank: 1, Size: 3, ID: r.ID()})
	wantError(t, err, mscclgo.ErrTimeout, "this rank came too late: the group gave up at", "did not come: ranks 1-2")
}
