package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
)

// A bench is what package netlab takes for a test.
type bench struct {
	testing.TB // nil: only the methods below are called
	undo       []func()
}

// A giveUp ends what a bench cannot do.
type giveUp struct{ error }

func (b *bench) Helper()                   {}
func (b *bench) Logf(string, ...any)       {}
func (b *bench) Cleanup(f func())          { b.undo = append(b.undo, f) }
func (b *bench) Fatalf(f string, a ...any) { panic(giveUp{fmt.Errorf(f, a...)}) }
func (b *bench) Skipf(f string, a ...any)  { b.Fatalf(f, a...) }

// try calls f, and returns why it could not be done.
func try(f func()) (err error) {
	defer func() {
		switch why := recover().(type) {
		case nil:
		case giveUp:
			err = why.error
		default:
			panic(why)
		}
	}()
	f()
	return nil
}

// newHosts makes hosts, which remove removes. It needs root.
func newHosts(n int, o netlab.Options) (lab *netlab.Lab, remove func() error, err error) {
	b := &bench{}
	remove = func() error {
		var errs []error
		for i := range b.undo {
			errs = append(errs, try(b.undo[len(b.undo)-1-i]))
		}
		return errors.Join(errs...)
	}
	if err = try(func() { lab = netlab.New(b, n, o) }); err != nil {
		remove()
		return nil, nil, err
	}
	return lab, remove, nil
}

// hostOf returns the host of a rank: the victim has one for itself, or for its pair.
func (r *run) hostOf(rank int) *netlab.Host {
	if r.lab == nil {
		return nil
	}
	if rank == r.Victim || r.isMate(rank) {
		return r.lab.Hosts[0]
	}
	return r.lab.Hosts[1+rank%(len(r.lab.Hosts)-1)]
}

// drop loses the packets of a host until stop is closed: for moments without a period, in
// bursts. TCP sends again after 200 ms, and then after twice as long each time. So what a burst
// held up has come 3 s after its beginning, which is less than the heartbeat time-out, unless the
// system takes far too long to change the port. longest is the longest burst.
func drop(h *netlab.Host, random *rand.Rand, stop <-chan struct{}) (longest time.Duration, err error) {
	const burst, rest = 1500 * time.Millisecond, 3 * time.Second
	err = try(func() {
		for began := time.Now(); ; {
			h.Mute()
			time.Sleep(20 * time.Millisecond)
			h.Unmute()
			longest = max(longest, time.Since(began))
			pause := time.Duration(random.IntN(360)) * time.Millisecond
			if time.Since(began)+pause > burst {
				pause += rest
				began = time.Now().Add(pause)
			}
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
		}
	})
	return longest, err
}
