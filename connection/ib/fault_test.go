package ib

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
	"golang.org/x/sys/unix"
)

// write has a write 64 bytes to b and wait for them.
func write(t *testing.T, a, b *side) error {
	t.Helper()
	src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
	if err := a.conn.Write(dst, 0, src, 0, 64); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return a.conn.Flush(ctx)
}

func TestPortDown(t *testing.T) {
	name := testDevices(t)[1]
	unplug(t, netdev(t, name))
	_, err := New(newRegistry(t, 0), Options{Device: name})
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "no port that may be used is active", name, "rank 0")
}

// TestLinkDown takes the link down under a connection, for longer than anybody
// waits.
func TestLinkDown(t *testing.T) {
	dev := netdev(t, testDevices(t)[1])
	for name, o := range map[string]Options{
		"the device gives up":     {AckTimeout: time.Millisecond, Retries: 3},
		"it tries again for ever": {Retries: 7, Timeout: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, o)
			testerr.Check(t, write(t, a, b))
			unplug(t, dev)
			start := time.Now()
			testerr.Expect(t, write(t, a, b), mscclgo.ErrRemote, "rank 0, peer 1", "write of 64 bytes", "queue pair")
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			testerr.Report(t, errors.Join(a.conn.Close(), b.conn.Close()))
		})
	}
}

// TestLost has a write fail while nobody calls anything, and a peer that closes an idle connection.
func TestLost(t *testing.T) {
	dev := netdev(t, testDevices(t)[1])
	for name, fault := range map[string]func(t *testing.T, a, b *side) error{
		"the link is down": func(t *testing.T, a, b *side) error {
			src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
			unplug(t, dev)
			return a.conn.Write(dst, 0, src, 0, 64)
		},
		"closed": func(_ *testing.T, _, b *side) error { return b.d.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			lost := make(chan error, 1)
			a, b := newPair(t, Options{AckTimeout: time.Millisecond, Retries: 3, Timeout: 4 * time.Second, Lost: func(peer int, err error) {
				if peer != 1 {
					t.Errorf("rank %d is lost", peer)
				}
				lost <- err
			}})
			testerr.Check(t, write(t, a, b))
			testerr.Check(t, fault(t, a, b))
			for end := time.Now().Add(patience); a.d.broken.Load() == nil && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			told := patience
			if name == "closed" { // nobody need be
				told = 2 * glanceEvery
			}
			select {
			case err := <-lost:
				testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "write of 64 bytes")
			case <-time.After(told):
				if name != "closed" {
					t.Error("nobody was told")
				}
			}
		})
	}
}

// TestGoodbye has the peer close a connection, and then a write fail: the peer is not lost.
func TestGoodbye(t *testing.T) {
	testDevices(t)
	// A busy machine may take a second to acknowledge that the connection closes.
	a, b := newPair(t, Options{AckTimeout: 250 * time.Millisecond, Retries: 6, Lost: func(peer int, err error) {
		t.Errorf("rank %d is lost: %v", peer, err)
	}})
	testerr.Check(t, write(t, a, b))
	start := time.Now()
	testerr.Check(t, b.d.Close())
	if took := time.Since(start); took >= goodbyePatience {
		t.Errorf("closing took %v", took)
	}
	testerr.Expect(t, write(t, a, b), mscclgo.ErrRemote, "rank 0, peer 1", "write of 64 bytes")
	if !a.d.scratch.left() {
		t.Error("the peer has not said that it closes")
	}
	time.Sleep(2 * glanceEvery) // for what tells
}

// TestFlushEnds flushes a full queue, of which nothing gets done, and leaves by its context.
func TestFlushEnds(t *testing.T) {
	dev := netdev(t, testDevices(t)[1])
	a, b := newPair(t, Options{Depth: 16, AckTimeout: time.Second, Retries: 7})
	src, dst := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
	plug := unplug(t, dev)
	full := func() bool {
		a.d.mu.Lock()
		defer a.d.mu.Unlock()
		return a.d.queues[0].room() == 0
	}
	for !full() {
		testerr.Check(t, a.conn.Write(dst, 0, src, 0, 64))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	testerr.Expect(t, a.conn.Flush(ctx), mscclgo.ErrTimeout, "rank 0, peer 1")
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	plug()
	a.flush(t)
}

// TestLinkDownShortly brings the link back before anybody gives up.
func TestLinkDownShortly(t *testing.T) {
	dev := netdev(t, testDevices(t)[1])
	a, b := newPair(t, Options{AckTimeout: time.Second})
	plug := unplug(t, dev)
	src, mine := a.memory(t, 64, false), b.memory(t, 64, false)
	testerr.Check(t, errors.Join(a.conn.Write(a.imported(t, mine), 0, src, 0, 64), a.conn.UpdateAndSync(a.imported(t, mine), 0, 0, 7)))
	time.Sleep(200 * time.Millisecond)
	plug()
	a.flush(t)
	got := make([]uint64, 1)
	if read(t, mine, 0, got); got[0] != 7 {
		t.Errorf("the word is %d", got[0])
	}
}

// TestIdlePeerDies ends the peer's transport while nobody calls anything.
func TestIdlePeerDies(t *testing.T) {
	a, b := newPair(t, Options{AckTimeout: time.Millisecond, Retries: 3, Timeout: time.Second})
	testerr.Check(t, write(t, a, b))
	testerr.Check(t, b.d.Close())
	for end := time.Now().Add(patience); a.d.broken.Load() == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was never noticed")
		}
	}
	testerr.Expect(t, a.d.failed("look"), mscclgo.ErrRemote, "rank 0, peer 1", "empty write")
}

// TestFlushReadsBack counts the reads with which a flush makes sure that writes are in
// place: one for each kind of memory that was written to since the last.
func TestFlushReadsBack(t *testing.T) {
	a, b := newPair(t, Options{})
	src, host, device := a.memory(t, 64, true), a.imported(t, b.memory(t, 64, true)), a.imported(t, b.memory(t, 64, false))
	requests := func() uint64 {
		a.d.mu.Lock()
		defer a.d.mu.Unlock()
		return a.d.queues[0].posted
	}
	k := testerr.Must(decodeKey(device.Key(registeredmem.InfiniBand)))(t)
	both := uint64(2)
	if !k.device {
		both = 1
	}
	for _, c := range []struct {
		what  string
		to    []*registeredmem.Memory
		reads uint64
	}{
		{"nothing", nil, 0}, {"host memory", []*registeredmem.Memory{host}, 1}, {"device memory", []*registeredmem.Memory{device, device}, 1},
		{"both", []*registeredmem.Memory{device, host, device}, both}, {"nothing again", nil, 0},
	} {
		for _, m := range c.to {
			testerr.Check(t, a.conn.Write(m, 0, src, 0, 64))
		}
		before := requests()
		a.flush(t)
		if n := requests() - before; n != c.reads {
			t.Errorf("a flush behind writes to %s made %d requests, not %d", c.what, n, c.reads)
		}
	}
}

// TestMTUsDiffer has one end with small packets.
func TestMTUsDiffer(t *testing.T) {
	testDevices(t)
	test := func(t *testing.T, a, b *side) {
		connect(t, a, b)
		if x, y := a.d.queues[0].path(&a.t.o).MTU, b.d.queues[0].path(&b.t.o).MTU; x != y {
			t.Errorf("one end has MTU %d, the other %d", x, y)
		}
		puts(t, a, b, 20, 10_000, true)
		puts(t, b, a, 20, 10_000, true)
	}
	t.Run("by option", func(t *testing.T) {
		test(t, newSide(t, 0, Options{}), newSide(t, 1, Options{MTU: 256}))
	})
	t.Run("of the interface", func(t *testing.T) {
		setMTU(t, netdev(t, testDevices(t)[1]), "1500")
		test(t, newSide(t, 0, Options{}), newSide(t, 1, Options{}))
	})
	t.Run("too large", func(t *testing.T) {
		setMTU(t, netdev(t, testDevices(t)[1]), "1500")
		_, err := New(newRegistry(t, 1), Options{Device: testDevices(t)[1], MTU: 4096})
		testerr.Expect(t, err, mscclgo.ErrInvalid, "an MTU of 4096 is asked for", "rank 1")
	})
}

// TestLockedMemory registers more than may be locked.
func TestLockedMemory(t *testing.T) {
	s := newSide(t, 0, Options{Device: testDevices(t)[0]})
	buf, err := s.reg.Device().AllocHost(1 << 20)
	testerr.Check(t, err)
	t.Cleanup(func() { buf.Close() })

	// The limit does not hold for threads that have CAP_IPC_LOCK. The thread ends with the test:
	// once its credentials were changed the kernel lets it post to no device that others opened.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	testerr.Check(t, unix.Capget(&header, &caps[0]))
	fewer := caps
	fewer[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	var limit unix.Rlimit
	testerr.Check(t, errors.Join(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit), unix.Capset(&header, &fewer[0]),
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: limit.Max})))
	_, failed := s.reg.Register(buf)
	testerr.Check(t, errors.Join(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit), unix.Capset(&header, &caps[0])))
	testerr.Expect(t, failed, mscclgo.ErrSystem, "cannot be locked", "65536 bytes", "ulimit -l", "rank 0")
	m, err := s.reg.Register(buf)
	if err != nil {
		t.Fatal("with the limit back:", err)
	}
	testerr.Report(t, m.Close())
}

// TestWrongGID chooses an entry of the table that is empty, and one by which the peer
// cannot be reached.
func TestWrongGID(t *testing.T) {
	name := testDevices(t)[0]
	_, err := New(newRegistry(t, 0), Options{Device: name, GIDIndex: 250})
	testerr.Expect(t, err, mscclgo.ErrInvalid, "no GID with index 250", name, "ibv_devinfo")

	netdev(t, name) // the first entry is link-local, and the peer's address is not
	o := Options{AckTimeout: time.Millisecond, Retries: 2, Timeout: 2 * time.Second}
	wrong := o
	wrong.GIDIndex = -1
	unreachable(t, newSide(t, 0, wrong), newSide(t, 1, o), func(*endpoint) {})
}

// TestNoWayToThePeer connects to an address that nobody has.
func TestNoWayToThePeer(t *testing.T) {
	testDevices(t)
	o := Options{AckTimeout: time.Millisecond, Retries: 2, Timeout: 2 * time.Second}
	unreachable(t, newSide(t, 0, o), newSide(t, 1, o), func(theirs *endpoint) {
		for _, q := range theirs.queues {
			q.about.gid[15] ^= 0x55
		}
	})
}

// unreachable connects a with b's endpoint, which is changed first, and checks that
// either the kernel knows no way there, or nobody answers.
func unreachable(t *testing.T, a, b *side, change func(*endpoint)) {
	t.Helper()
	mine, err := a.t.NewEndpoint()
	testerr.Check(t, err)
	theirs := testerr.Must(b.t.NewEndpoint())(t)
	change(theirs.(*endpoint))
	data := testerr.Must(theirs.MarshalBinary())(t)
	if err = a.connect(t, mine.(*endpoint), data); err != nil {
		testerr.Expect(t, err, mscclgo.ErrSystem, "ready to receive", "rank 0, peer 1")
		return
	}
	testerr.Expect(t, write(t, a, b), mscclgo.ErrRemote, "rank 0, peer 1", "GID")
}
