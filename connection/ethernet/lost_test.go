package ethernet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
)

// TestLost checks that a rank is told when an idle connection breaks, and not when the peer
// closes it, or hangs up because this rank does.
func TestLost(t *testing.T) {
	tests := map[string]struct {
		end  func(ab, ba *link)
		told string // what it is told, or ""
	}{
		"the peer hangs up": {func(_, ba *link) { ba.d.hangUp() }, "its process has ended"},
		"the peer fails":    {func(_, ba *link) { ba.d.Broken(errors.New("out of order")) }, "its device or system failed, though its process lives"},
		"the peer closes":   {func(_, ba *link) { ba.Close() }, ""},
		// Close is bye and then the end, before which the peer may have answered.
		"this rank closes": {func(ab, _ *link) {
			ab.d.Reason(mscclgo.ErrInvalid, message.ErrClosed)
			ab.d.Tell(&message.Frame{Kind: message.Bye}, testlink.Timeout)
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			told := make(chan error, 10)
			options := loopback()
			options.Lost = func(peer int, err error) {
				if peer != 1 {
					t.Errorf("Lost names rank %d, want 1", peer)
				}
				told <- err
			}
			ab, ba := connect(t, newRank(t, 0, options), newRank(t, 1, loopback()))
			test.end(ab, ba)
			failed(t, ab)
			patience := 100 * time.Millisecond
			if test.told != "" {
				patience = 20 * time.Second
			}
			select {
			case err := <-told:
				if test.told == "" || !errors.Is(err, mscclgo.ErrRemote) || !strings.Contains(err.Error(), test.told) {
					t.Errorf("Lost says %v", err)
				}
			case <-time.After(patience):
				if test.told != "" {
					t.Error("the connection broke, and Lost says nothing")
				}
			}
		})
	}
}

// TestLostRefused has the peer refuse a write, as it has closed the buffer: this rank is told at once, though it does
// nothing more.
func TestLostRefused(t *testing.T) {
	told := make(chan error, 10)
	options := loopback()
	options.Lost = func(_ int, err error) { told <- err }
	a, b := newRank(t, 0, options), newRank(t, 1, loopback())
	ab, _ := connect(t, a, b)
	way(t, ab, a, b, pinned, pinned).RefusedAtOnce(t, told)
}

// TestCloseAfterTheGroupFailed has the group fail while a peer, as one that is stopped, does
// not acknowledge what it was sent: closing the connection, or a memory, does not wait for it,
// and nothing reads the memory afterwards.
func TestCloseAfterTheGroupFailed(t *testing.T) {
	for _, first := range []string{"connection", "memory", "failure"} {
		t.Run(first, func(t *testing.T) {
			group := make(chan struct{})
			a := newMortalRank(t, 0, loopback(), handshake.DefaultPatience, group)
			b := newRank(t, 1, loopback())
			ab, ba := connect(t, a, b)
			release := ba.d.holdAcks()
			defer release()
			src, mine := memory(t, a, pinned, 64<<20), memory(t, b, pinned, 64<<20)
			testerr.Check(t, ab.Write(imported(t, a, mine), 0, src, 0, 64<<20))
			start := time.Now()
			if first == "failure" {
				close(group)
			} else {
				time.AfterFunc(50*time.Millisecond, func() { close(group) })
			}
			errs := []error{nil, nil}
			if first == "memory" {
				errs[0] = src.Close()
			}
			errs[1] = ab.Close()
			testerr.Report(t, errors.Join(errs...))
			if took := time.Since(start); took > testlink.Timeout/2 {
				t.Errorf("it took %v", took)
			}
			if !ab.d.Over() {
				t.Error("the connection goes on")
			}
		})
	}
}

// TestDataSocketBreaks checks that both ranks are told when a data socket breaks, idle or with
// data under way, without waiting for a reason that neither has.
func TestDataSocketBreaks(t *testing.T) {
	for _, tls := range []bool{false, true} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("TLS %v, busy %v", tls, busy), func(t *testing.T) {
				var told sync.WaitGroup
				told.Add(2)
				var ranks [2]*rank
				for i := range ranks {
					o := loopback()
					o.TLS = tls
					o.Lost = func(int, error) { told.Done() }
					ranks[i] = newRank(t, i, o)
					ranks[i].t.rank.Parting = testlink.Timeout
				}
				ab, ba := connect(t, ranks[0], ranks[1])
				if busy {
					src, mine := memory(t, ranks[0], pinned, 64<<20), memory(t, ranks[1], pinned, 64<<20)
					testerr.Check(t, ab.Write(imported(t, ranks[0], mine), 0, src, 0, 64<<20))
				}
				start := time.Now()
				raw := testerr.Must(tcpOf(ab.d.sockets[1]).SyscallConn())(t)
				testerr.Check(t, raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RDWR) }))
				one, other := failed(t, ab), failed(t, ba)
				testerr.Expect(t, one, mscclgo.ErrRemote, "the peer is lost", "a data socket")
				testerr.Expect(t, other, mscclgo.ErrRemote, "the peer is lost", "a data socket")
				if why := "though both processes live: "; !strings.Contains(fmt.Sprint(one, other), why) {
					t.Errorf("neither says what became of the socket: %v; %v", one, other)
				}
				told.Wait()
				if took := time.Since(start); took > testlink.Timeout/2 {
					t.Errorf("it took %v", took)
				}
			})
		}
	}
}

// TestPartsAfterAFailure closes a connection whose peer acknowledges nothing. The group has failed
// because of the peer, or as long ago as the peer may take to hear of that: closing does not wait
// for the peer any more.
func TestPartsAfterAFailure(t *testing.T) {
	for _, dead := range []bool{false, true} {
		t.Run(fmt.Sprintf("dead %v", dead), func(t *testing.T) {
			group, o := make(chan struct{}), loopback()
			o.Dead = func(peer int) bool { return peer == 0 && dead }
			a := newMortalRank(t, 1, o, handshake.DefaultPatience, group)
			r := newRogue(t, a, 1)
			control := tcpOf(r.conn.d.control)
			testerr.Check(t, errors.Join(tcpOf(r.control).SetReadBuffer(4<<10), control.SetWriteBuffer(1<<20)))
			control.Write(make([]byte, 128<<10)) // more than the peer's system takes, so that it has no bye
			if handshake.Acknowledged(control) {
				t.Fatal("the peer's system has taken all")
			}
			close(group)
			testlink.Eventually(t, "the transport notes the failure", func() bool { return a.t.rank.Failed.Load() != nil })
			if !dead {
				before := a.t.rank.Failed.Load().Add(-handshake.Resent)
				a.t.rank.Failed.Store(&before)
			}
			start := time.Now()
			testerr.Report(t, errors.Join(r.conn.Close(), a.t.Close()))
			if took := time.Since(start); took > handshake.Resent/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestLostDial has contexts end while a rank dials, at all times: the peer, at which the connection may be whole by
// then, loses nobody.
func TestLostDial(t *testing.T) {
	options := loopback()
	options.Lost = func(peer int, err error) { t.Errorf("rank %d is lost: %v", peer, err) }
	a, b := newRank(t, 0, options), newRank(t, 1, options)
	about := testlink.Marshal(t, b.e)
	testlink.EndWhileConnecting(t, func(ctx context.Context) (*connection.Connection, error) { return a.e.Connect(ctx, about) })
	time.Sleep(100 * time.Millisecond) // for what the peer notices last
}
