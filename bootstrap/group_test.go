package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// quiet is a logger for groups whose troubles are the test's own.
var quiet = slog.New(slog.DiscardHandler)

// testContext ends before the test binary would be killed, and bounds every
// wait of a test.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// rendezvous opens one on the loopback address for the test's time.
func rendezvous(t testing.TB, log *slog.Logger) *Rendezvous {
	t.Helper()
	r, err := NewRendezvous("127.0.0.1:0", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// connectAll connects configs at the same time and returns what each got.
func connectAll(ctx context.Context, opts []Options) ([]*Bootstrap, []error) {
	bs := make([]*Bootstrap, len(opts))
	errs := make([]error, len(opts))
	var wg sync.WaitGroup
	for i, o := range opts {
		wg.Go(func() { bs[i], errs[i] = Connect(ctx, o) })
	}
	wg.Wait()
	return bs, errs
}

// group connects size ranks, closes them with the test, and checks that they
// leave no goroutine behind.
func group(t testing.TB, size int) []*Bootstrap { return groupOf(t, size, Options{}) }

// groupOf is group with more options, the same for all ranks.
func groupOf(t testing.TB, size int, o Options) []*Bootstrap {
	t.Helper()
	noLeaks(t)
	ctx := testContext(t)
	r := rendezvous(t, quiet)
	opts := make([]Options, size)
	for i := range opts {
		o.Rank, o.Size, o.ID = i, size, r.ID()
		opts[i] = o
	}
	bs, errs := connectAll(ctx, opts)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(bs) })
	return bs
}

// proved returns a connection to a rendezvous, to which the rank has proved the group's secret.
func proved(t *testing.T, r *Rendezvous, rank uint32) net.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", r.ID().Addr())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := r.ID().member(handshake.Clear).Client(t.Context(), raw, claim{role: roleJoin, from: rank, to: toRendezvous}.encode())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc
}

func closeAll(bs []*Bootstrap) {
	var wg sync.WaitGroup
	for _, b := range bs {
		if b != nil {
			wg.Go(func() { b.Close() })
		}
	}
	wg.Wait()
}

// noLeaks fails the test if more goroutines run at its end than now.
func noLeaks(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// TestIdleGoroutines counts the goroutines of a group that does nothing: one for each listener, and one at each end of
// a connection.
func TestIdleGoroutines(t *testing.T) {
	const ranks = 4
	before := runtime.NumGoroutine()
	group(t, ranks)
	await(t, "a group that is idle has few goroutines", func() bool {
		return runtime.NumGoroutine()-before <= ranks+1+2*(ranks-1)
	})
}

// each runs f for all ranks at the same time and fails the test for any error.
func each(t testing.TB, bs []*Bootstrap, f func(b *Bootstrap) error) {
	t.Helper()
	errs := make([]error, len(bs))
	var wg sync.WaitGroup
	for i, b := range bs {
		wg.Go(func() { errs[i] = f(b) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// wantError checks an error's kind and what its text names.
func wantError(t testing.TB, err error, kind mscclgo.Kind, parts ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v, want %v", err, kind)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not name %q", err, p)
		}
	}
}

// TestManyRanks has 64 ranks form a group, meet and leave, or so many as MSCCLGO_TEST_RANKS says, such as 600.
func TestManyRanks(t *testing.T) {
	ranks := 64
	if s := os.Getenv("MSCCLGO_TEST_RANKS"); s != "" {
		ranks, _ = strconv.Atoi(s)
	}
	took := func(what string, since time.Time) {
		d := time.Since(since)
		t.Logf("%d ranks %s in %v", ranks, what, d)
		if most := max(5*time.Second, time.Duration(ranks)*50*time.Millisecond); d > most { // 64 well under one on a machine of their own
			t.Errorf("%d ranks %s in %v", ranks, what, d)
		}
	}
	start := time.Now()
	bs := group(t, ranks)
	took("form", start)
	ctx := testContext(t)
	want := make([][]byte, ranks)
	for r := range want {
		want[r] = fmt.Appendf(nil, "rank %d", r)
	}
	start = time.Now()
	each(t, bs, func(b *Bootstrap) error {
		got, err := b.AllGather(ctx, want[b.Rank()])
		if err != nil {
			return err
		}
		if !slices.EqualFunc(want, got, bytes.Equal) {
			return fmt.Errorf("rank %d (-want +got):\n%s", b.Rank(), cmp.Diff(want, got))
		}
		return b.Barrier(ctx)
	})
	took("meet", start)
	start = time.Now()
	closeAll(bs)
	took("leave", start)
}

// Rank 0 opens the rendezvous of an id that a launcher made before it started,
// and the others wait for it.
func TestHostedByRankZero(t *testing.T) {
	noLeaks(t)
	id := freeID(t)
	ctx := testContext(t)
	var bs [3]*Bootstrap
	var errs [3]error
	var wg sync.WaitGroup
	for _, rank := range []int{2, 1, 0} {
		wg.Go(func() { bs[rank], errs[rank] = Connect(ctx, Options{Rank: rank, Size: 3, ID: id}) })
		time.Sleep(20 * time.Millisecond) // the others find nobody at first
	}
	wg.Wait()
	defer closeAll(bs[:])
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	each(t, bs[:], func(b *Bootstrap) error { return b.Barrier(ctx) })

	// The group is complete: one more hears that at once.
	_, err := Connect(ctx, Options{Rank: 1, Size: 3, ID: id})
	wantError(t, err, mscclgo.ErrInvalid, "complete already", "rank 1")
}

func TestIPv6(t *testing.T) {
	noLeaks(t)
	r, err := NewRendezvous("[::1]:0", quiet)
	if err != nil {
		t.Skipf("no IPv6: %v", err)
	}
	defer r.Close()
	ctx := testContext(t)
	bs, errs := connectAll(ctx, []Options{{Rank: 0, Size: 2, ID: r.ID()}, {Rank: 1, Size: 2, ID: r.ID()}})
	defer closeAll(bs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	each(t, bs, func(b *Bootstrap) error { return b.Barrier(ctx) })
}

// An id for every address of the machine, an interface and an address given by
// name all lead to a working group.
func TestAddresses(t *testing.T) {
	noLeaks(t)
	r, err := NewRendezvous(":0", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx := testContext(t)
	bs, errs := connectAll(ctx, []Options{
		{Rank: 0, Size: 3, ID: r.ID()},
		{Rank: 1, Size: 3, ID: r.ID(), Interface: "lo"},
		{Rank: 2, Size: 3, ID: r.ID(), Advertise: "localhost"},
	})
	defer closeAll(bs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if at := bs[1].Internal().LocalAddr(); !at.IsLoopback() {
		t.Errorf("rank 1 is at %v", at)
	}
	if at := bs[2].Internal().LocalAddr(); at.IsValid() {
		t.Errorf("rank 2, on all addresses, is at %v", at)
	}
	each(t, bs, func(b *Bootstrap) error {
		for peer := range b.Size() {
			if err := b.Send(ctx, peer, 0, []byte{byte(b.Rank())}); err != nil {
				return err
			}
		}
		for peer := range b.Size() {
			got, err := b.Recv(ctx, peer, 0)
			if diff := cmp.Diff([]byte{byte(peer)}, got); err != nil || diff != "" {
				return fmt.Errorf("from rank %d: %v (-want +got):\n%s", peer, err, diff)
			}
		}
		return nil
	})
}
