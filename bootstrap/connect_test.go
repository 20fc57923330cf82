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

// As above, with a rendezvous that ends with rank 0's Connect: it waits until
// the others have heard.
func TestDisagreementHostedByRankZero(t *testing.T) {
	noLeaks(t)
	probe := rendezvous(t, quiet)
	addr := probe.ID().Addr()
	probe.Close()
	id, err := NewUniqueID(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	start := time.Now()
	errs := make([]error, 3)
	var zero sync.WaitGroup
	zero.Go(func() { _, errs[0] = Connect(ctx, Options{Rank: 0, Size: 3, ID: id}) })
	_, errs[1] = Connect(ctx, Options{Rank: 1, Size: 4, ID: id})
	_, errs[2] = Connect(ctx, Options{Rank: 2, Size: 3, ID: id}) // that late
	zero.Wait()
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrInvalid, "disagree on the world size", "rank 0", "rank 1", "3", "4")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Rank 0 has a smaller world size than the others, of which some come when it knows that.
func TestRankZeroWithASmallerSize(t *testing.T) {
	noLeaks(t)
	probe := rendezvous(t, quiet)
	probe.Close()
	id, err := NewUniqueID(probe.ID().Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	start := time.Now()
	errs := make([]error, 4)
	var zero sync.WaitGroup
	zero.Go(func() { _, errs[0] = Connect(ctx, Options{Rank: 0, Size: 2, ID: id}) })
	for rank := 1; rank < 4; rank++ { // one when the other has heard
		_, errs[rank] = Connect(ctx, Options{Rank: rank, Size: 4, ID: id})
	}
	zero.Wait()
	for _, err := range errs {
		wantError(t, err, mscclgo.ErrInvalid, "disagree on the world size", "2", "4")
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
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
	opts[2].Timeout = 2 * time.Second // without it the group cannot be
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
	time.AfterFunc(50*time.Millisecond, func() { r.Close() })
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
