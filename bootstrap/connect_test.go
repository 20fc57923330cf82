package bootstrap

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
)

func TestTwoRanksWithOneNumber(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	bs, errs := connectAll(testContext(t), []Options{
		{Rank: 0, Size: 3, ID: r.ID()},
		{Rank: 1, Size: 3, ID: r.ID()},
		{Rank: 1, Size: 3, ID: r.ID()},
	})
	closeAll(bs)
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrInvalid, "two processes are rank 1")
	}
}

// Ranks have different world sizes, of which some come when rank 0, whose Connect opened the rendezvous, knows that: it
// waits until the others have heard.
func TestRankZeroWithASmallerSize(t *testing.T) {
	for what, test := range map[string]struct {
		sizes []int // of the ranks from 0
		names []string
	}{
		"one differs":        {[]int{3, 4, 3}, []string{"rank 0", "rank 1", "3", "4"}},
		"rank 0 has too few": {[]int{2, 4, 4, 4}, []string{"2", "4"}},
	} {
		t.Run(what, func(t *testing.T) {
			noLeaks(t)
			id, ctx, start := freeID(t), testContext(t), time.Now()
			errs := make([]error, len(test.sizes))
			var zero sync.WaitGroup
			zero.Go(func() { _, errs[0] = Connect(ctx, Options{Rank: 0, Size: test.sizes[0], ID: id}) })
			for rank := 1; rank < len(errs); rank++ { // one when the other has heard
				_, errs[rank] = Connect(ctx, Options{Rank: rank, Size: test.sizes[rank], ID: id})
			}
			zero.Wait()
			for _, err := range errs {
				wantError(t, err, mscclgo.ErrInvalid, append(test.names, "disagree on the world size")...)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestMissingRanks(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	start := time.Now()
	var opts []Options
	for _, rank := range []int{0, 2, 3, 9} {
		opts = append(opts, Options{Rank: rank, Size: 10, ID: r.ID(), Timeout: 40 * time.Second})
	}
	opts[2].Timeout = 20 * time.Second // without it the group cannot be
	go func() {
		await(t, "all come", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == len(opts) })
		r.mu.Lock()
		defer r.mu.Unlock()
		if left := time.Until(r.members[3].until); left >= opts[2].Timeout-100*time.Millisecond {
			t.Errorf("rank 3, which gives up in 20 s, has %v until it must have its answer", left)
		}
		r.members[3].until = time.Now() // rather than wait
	}()
	bs, errs := connectAll(testContext(t), opts)
	closeAll(bs)
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrTimeout, "6 of 10 ranks did not come: ranks 1, 4-8")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestInvalidOptions(t *testing.T) {
	id := newID([]string{"127.0.0.1"}, 1, false)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Rank: 4, Size: 4, ID: id}, "rank 4 is outside a world of 4"},
		{Options{Rank: -1, Size: 4, ID: id}, "rank -1"},
		{Options{Size: 0, ID: id}, "world size 0"},
		{Options{Size: MaxSize + 1, ID: id}, "world size 32769"},
		{Options{Size: 1}, "no unique id"},
		{Options{Size: 1, ID: id, Timeout: -1}, "negative"},
		{Options{Size: 1, ID: id, Interface: "lo", Advertise: "here"}, "both"},
		{Options{Size: 1, ID: id, Advertise: "two words"}, "two words"},
		{Options{Size: 1, ID: id, Advertise: "10.0.0.1:80"}, "a port does not belong"},
	} {
		b, err := Connect(testContext(t), c.o)
		wantError(t, err, mscclgo.ErrInvalid, c.want)
		if b != nil {
			t.Errorf("%+v: a bootstrap besides the error", c.o)
		}
	}
	r := rendezvous(t, quiet)
	_, err := Connect(testContext(t), Options{Size: 1, ID: r.ID(), Interface: "no-such-interface"})
	wantError(t, err, mscclgo.ErrInvalid, "no-such-interface")
}

// Nobody listens at a stale id's address, another group's rendezvous does, or
// something that is no rendezvous.
func TestStaleID(t *testing.T) {
	noLeaks(t)
	short := func(id UniqueID) error {
		_, err := Connect(testContext(t), Options{Rank: 1, Size: 2, ID: id, Timeout: 2 * time.Second})
		return err
	}
	gone := rendezvous(t, quiet)
	gone.Close()
	wantError(t, short(gone.ID()), mscclgo.ErrTimeout, "nobody answers", "stale")

	other := rendezvous(t, quiet)
	stale := gone.ID()
	stale.port = other.ID().port
	wantError(t, short(stale), mscclgo.ErrInvalid, "not the rendezvous of this group", "another group", "stale")

	stale = other.ID()
	stale.secret = gone.ID().secret
	if err := short(stale); err == nil {
		t.Error("another secret was good enough")
	}

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "220 mail.example ready to take any letter that you may have for us here\r\n")
			c.Close()
		}
	}()
	stale.port = uint16(ln.Addr().(*net.TCPAddr).Port)
	wantError(t, short(stale), mscclgo.ErrInvalid, "not a handshake of this library")
}

func TestConnectCancelled(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	ctx, cancel := context.WithCancel(testContext(t))
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := Connect(ctx, Options{Rank: 0, Size: 2, ID: r.ID()})
	wantError(t, err, mscclgo.ErrAborted)

	// Its place is free again.
	bs, errs := connectAll(testContext(t), []Options{
		{Rank: 0, Size: 2, ID: r.ID()}, {Rank: 1, Size: 2, ID: r.ID()}})
	defer closeAll(bs)
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestRendezvousClosedEarly(t *testing.T) {
	noLeaks(t)
	r := rendezvous(t, quiet)
	go func() {
		await(t, "a rank comes", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.members) == 1 })
		r.Close()
	}()
	_, err := Connect(testContext(t), Options{Rank: 0, Size: 2, ID: r.ID()})
	wantError(t, err, mscclgo.ErrAborted, "closed")
}

func TestRankList(t *testing.T) {
	for want, ranks := range map[string][]int{
		"rank 3":            {3},
		"ranks 0-2, 5, 7-8": {0, 1, 2, 5, 7, 8},
	} {
		if got := rankList(ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
}
