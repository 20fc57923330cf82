package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// rogue is a member of the group, rank 0, that writes what it likes into its ring.
type rogue struct {
	sock *net.UnixConn
	ring *ring
	to   *receiver
}

func newRogue(t testing.TB, to *rank) *rogue {
	t.Helper()
	r := &rogue{}
	ask := request{from: 0, to: to.e.about.rank, endpoint: to.e.about.id}
	testerr.Check(t, fdpass.Connect(t.Context(), to.t.key, to.t.server.Name(), ask.encode(), func(a fdpass.Answer, sock *net.UnixConn) (err error) {
		if a.File == nil {
			return errors.New(string(a.Body))
		}
		r.sock = sock
		r.ring, err = mapRing(to.reg.Device(), a.File)
		return err
	}))
	t.Cleanup(func() {
		r.sock.Close()
		testerr.Report(t, r.ring.Close())
	})
	r.to = receiverOf(t, to)
	return r
}

// post says that n entries are posted, and wakes the receiver.
func (r *rogue) post(n uint64) {
	r.ring.posted.Store(n)
	r.sock.Write(wake)
}

// says returns the message of that kind that comes.
func (r *rogue) says(t testing.TB, kind message.Kind) message.Frame {
	t.Helper()
	r.sock.SetDeadline(time.Now().Add(testlink.Timeout))
	packet := make([]byte, message.FrameSize+1)
	for {
		n, err := r.sock.Read(packet)
		if errors.Is(err, syscall.ECONNRESET) { // it had not read the wake; what it sent before comes next
			n, err = r.sock.Read(packet)
		}
		if err != nil {
			t.Fatalf("the packet of kind %d does not come: %v", kind, err)
		}
		m := testerr.Must(message.Decode(packet[:n]))(t)
		if m.Kind == kind {
			return m
		}
	}
}

// TestBadEntries posts entries that are wrong: they are refused with a reason, and nothing
// is written.
func TestBadEntries(t *testing.T) {
	data := func(change func(*entry)) entry {
		e := entry{Frame: message.Frame{Kind: message.Data, Length: 8, Total: 8}}
		change(&e)
		return e
	}
	update := func(change func(*entry)) entry {
		e := entry{Frame: message.Frame{Kind: message.Update, Total: 1}}
		change(&e)
		return e
	}
	for name, c := range map[string]struct {
		entry  entry
		says   string
		reason target.Reason
	}{
		"unknown memory":      {data(func(e *entry) { e.Memory = 99 }), "never was registered", target.Unknown},
		"one past the end":    {data(func(e *entry) { e.Offset = 64 - 7 }), "which has 64", target.Range},
		"far offset":          {data(func(e *entry) { e.Offset = 1<<64 - 8 }), "which has 64", target.Range},
		"more than the ring":  {data(func(e *entry) { e.Length, e.Total = minRing+1, minRing+1 }), "of a ring of", target.Protocol},
		"length of 2^63":      {data(func(e *entry) { e.Length, e.Total = 1<<63, 1<<63 }), "of a ring of", target.Protocol},
		"outside of the ring": {data(func(e *entry) { e.place = minRing - 7 }), "of a ring of", target.Protocol},
		"read past the end":   {entry{Frame: message.Frame{Kind: message.Read, Offset: 60, Length: 8, Total: 8}}, "which has 64", target.Range},
		"odd addition":        {entry{Frame: message.Frame{Kind: message.Add, Offset: 4, Length: 8}}, "not aligned", target.Range},
		"exchange past end":   {entry{Frame: message.Frame{Kind: message.Exchange, Offset: 64, Length: 8}}, "which has 64", target.Range},
		"odd exchange":        {entry{Frame: message.Frame{Kind: message.Exchange, Offset: 4, Length: 8}}, "not aligned", target.Range},
		"read to elsewhere":   {entry{Frame: message.Frame{Kind: message.Read, Length: 8, Total: 8}, place: minRing}, "of a ring of", target.Protocol},
		"empty":               {data(func(e *entry) { e.Length = 0 }), "0 bytes", target.Protocol},
		"word past the end":   {update(func(e *entry) { e.Offset = 64 }), "which has 64", target.Range},
		"odd word":            {update(func(e *entry) { e.Offset = 4 }), "not aligned", target.Range},
		"falling word":        {update(func(e *entry) { e.Length = 2 }), "down to", target.Protocol},
		"kind":                {entry{Frame: message.Frame{Kind: 77}}, "unknown kind 77", target.Protocol},
		"answer":              {entry{Frame: message.Frame{Kind: message.Answer, Length: 8, Total: 8}}, "an entry of kind 9", target.Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			for _, k := range kinds {
				b := newRank(t, 1, Options{Ring: minRing})
				m := memory(t, b, k, 64)
				r := newRogue(t, b)
				copy(r.ring.data, testlink.Noise(64))
				r.ring.put(0, &entry{Frame: message.Frame{Kind: message.Data, Memory: m.ID(), Length: 4, Total: 4}})
				e := c.entry
				if e.Memory == 0 {
					e.Memory = m.ID()
				}
				r.ring.put(1, &e)
				r.post(2)
				testerr.Expect(t, failed(t, &r.to.half), mscclgo.ErrRemote, c.says)
				m1 := r.says(t, message.Refuse)
				testcmp.Equal(t, "the reason", m1.Reason, c.reason)
				testcmp.Equal(t, "the entry's number", m1.Op, 1)
				if !strings.Contains(b.log.String(), "refused what a peer sent") {
					t.Error("the log does not say it")
				}
				want := make([]byte, 64)
				if k == pinned { // on a device the copy is abandoned
					copy(want, testlink.Noise(64)[:4])
					testcmp.Equal(t, "the memory", testlink.Get(t, m), want)
				}
				testcmp.Equal(t, "the rest of the memory", testlink.Get(t, m)[4:], want[4:])
			}
		})
	}
}

// TestBadCounts has counts jump, in the sender's ring and in the receiver's.
func TestBadCounts(t *testing.T) {
	for _, n := range []uint64{entryCount + 1, 1 << 40, 1<<64 - 1} {
		b := newRank(t, 1, Options{Ring: minRing})
		r := newRogue(t, b)
		r.post(n)
		testerr.Expect(t, failed(t, &r.to.half), mscclgo.ErrRemote, "entries are posted")
	}
	// Which fell: it was 1.
	b := newRank(t, 1, Options{Ring: minRing})
	m := memory(t, b, pinned, 64)
	r := newRogue(t, b)
	r.ring.put(0, &entry{Frame: message.Frame{Kind: message.Update, Memory: m.ID(), Total: 1}})
	r.post(1)
	testlink.Eventually(t, "it is done", func() bool { return r.ring.done.Load() == 1 })
	r.post(0)
	testerr.Expect(t, failed(t, &r.to.half), mscclgo.ErrRemote, "entries are posted")

	for name, lie := range map[string]func(*ring){
		"more than was posted": func(r *ring) { r.done.Store(r.posted.Load() + 1) },
		"all there is":         func(r *ring) { r.done.Store(1<<64 - 1) },
		"less than before":     func(r *ring) { r.done.Store(0) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
			ab := connect(t, a, b)
			dst := imported(t, a, memory(t, b, pinned, 8))
			testerr.Check(t, errors.Join(ab.UpdateAndSync(dst, 0, 0, 1), ab.Flush(t.Context())))
			lie(receiverOf(t, b).ring)
			if err := ab.UpdateAndSync(dst, 0, 1, 2); err != nil {
				testerr.Expect(t, err, mscclgo.ErrRemote, "entries are done")
			}
			testerr.Expect(t, failed(t, &ab.d.half), mscclgo.ErrRemote, "the peer is lost", "entries are done")
			testerr.Expect(t, ab.UpdateAndSync(dst, 0, 2, 3), mscclgo.ErrRemote, "rank 0, peer 1")
		})
	}
}

// TestBadPackets sends packets that are wrong, each way.
func TestBadPackets(t *testing.T) {
	for name, c := range map[string]struct {
		packet []byte
		says   string
	}{
		"noise":        {testlink.Noise(message.FrameSize), "version"},
		"long":         {make([]byte, 1000), "head of 41 bytes"},
		"short":        {[]byte{1}, "head of 1 bytes"},
		"news":         {(&message.Frame{Kind: message.Gone}).Bytes(), "kind 6 to the rank that receives"},
		"bye":          {(&message.Frame{Kind: message.Bye}).Bytes(), "has closed the connection"},
		"unknown kind": {(&message.Frame{Kind: 77}).Bytes(), "unknown kind 77"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRogue(t, newRank(t, 1, Options{}))
			testerr.Must(r.sock.Write(c.packet))(t)
			testerr.Expect(t, failed(t, &r.to.half), mscclgo.ErrRemote, c.says)
		})
	}
	for name, c := range map[string]struct {
		packet []byte
		says   string
	}{
		"noise":         {testlink.Noise(message.FrameSize), "version"},
		"data":          {(&message.Frame{Kind: message.Data, Length: 1, Total: 1}).Bytes(), "kind 1 to the rank that sends"},
		"false refusal": {(&message.Frame{Kind: message.Refuse, Reason: target.Closed, Refused: message.Data, Op: 5, Length: 1, Total: 1}).Bytes(), "refuses entry 5 of 0"},
	} {
		t.Run(name+" to the sender", func(t *testing.T) {
			a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
			ab := connect(t, a, b)
			testerr.Must(receiverOf(t, b).sock.Write(c.packet))(t)
			testerr.Expect(t, failed(t, &ab.d.half), mscclgo.ErrRemote, c.says)
		})
	}
}

// FuzzRing has a member of the group fill its ring with anything: what it may not change
// stays as it is, and the rank goes on.
func FuzzRing(f *testing.F) {
	var good []byte
	for _, e := range goodEntries {
		for _, w := range e.encode() {
			good = append(good, byte(w), byte(w>>32), byte(w>>63))
		}
	}
	f.Add(good, uint64(3))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 8}, uint64(1))
	f.Add([]byte{2, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 5}, uint64(1))
	f.Add([]byte{}, uint64(1<<63))
	b := newRank(f, 1, Options{Ring: minRing})
	mine, other := memory(f, b, pinned, 64), memory(f, b, pinned, 64)
	b.t.rank.Targets.Remove(other.ID())
	f.Fuzz(func(t *testing.T, words []byte, posted uint64) {
		r := newRogue(t, b)
		for i := 0; i+3 <= len(words) && i/3 < 8*entryWords; i += 3 {
			// Words that are small, or have bits at both ends.
			w := uint64(words[i]) | uint64(words[i+1])<<32 | uint64(words[i+2])<<56
			r.ring.words(uint64(i / 3 / entryWords))[i/3%entryWords].Store(w)
		}
		r.post(posted)
		testlink.Eventually(t, "all is done or refused", func() bool { return r.to.Over() || r.ring.done.Load() == posted })
		r.sock.Close()
		testlink.Eventually(t, "the rank lets go of the ring", func() bool {
			left := message.All[*receiver](&b.t.rank)
			return len(left) == 0
		})
		testcmp.Equal(t, "a memory that is not offered", testlink.Get(t, other), make([]byte, 64))
		testlink.Set(t, mine, make([]byte, 64))
	})
}

// TestBadRings has a peer answer with files that are no rings, which are not mapped.
func TestBadRings(t *testing.T) {
	made := func(size int64, seals int) *os.File {
		fd := testerr.Must(unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
		testerr.Check(t, unix.Ftruncate(fd, size))
		testerr.Must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals))(t)
		return os.NewFile(uintptr(fd), "test")
	}
	plain := testerr.Must(os.CreateTemp(t.TempDir(), ""))(t)
	device := newRank(t, 0, Options{}).reg.Device()
	for name, c := range map[string]struct {
		file *os.File
		says string
	}{
		"can shrink":   {made(dataAt+minRing, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), "fixed size"},
		"can grow":     {made(dataAt+minRing, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL), "fixed size"},
		"empty":        {made(0, seals), "0 bytes"},
		"small":        {made(dataAt+minRing-4096, seals), "the size of a ring"},
		"large":        {made(dataAt+maxRing+4096, seals), "the size of a ring"},
		"odd":          {made(dataAt+minRing+1, seals), "the size of a ring"},
		"a plain file": {plain, "fixed size"},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.file.Close()
			_, err := mapRing(device, c.file)
			testerr.Expect(t, err, mscclgo.ErrRemote, c.says)
		})
	}
}

// TestBadRequests asks for rings that do not exist.
func TestBadRequests(t *testing.T) {
	b := newRank(t, 1, Options{})
	good := request{from: 0, to: 1, endpoint: b.e.about.id}
	closed, err := b.t.NewEndpoint()
	testerr.Check(t, err)
	closed.Close()
	for name, c := range map[string]struct {
		ask  []byte
		says string
	}{
		"noise":              {testlink.Noise(40), "version"},
		"short":              {good.encode()[:8], ""},
		"another rank":       {(&request{to: 2, endpoint: good.endpoint}).encode(), "does not exist"},
		"no endpoint":        {(&request{to: 1}).encode(), "does not exist"},
		"a closed endpoint":  {(&request{to: 1, endpoint: closed.(*endpoint).about.id}).encode(), "does not exist"},
		"rank out of range ": {(&request{from: 1 << 31, to: 1, endpoint: good.endpoint}).encode(), "out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			err := fdpass.Connect(t.Context(), b.t.key, b.t.server.Name(), c.ask, func(a fdpass.Answer, sock *net.UnixConn) error {
				defer sock.Close()
				if a.File != nil || !strings.Contains(string(a.Body), c.says) {
					t.Errorf("the answer is %q with file %v", a.Body, a.File)
				}
				return nil
			})
			testerr.Report(t, err)
		})
	}
	// The rank that asks gets the reason.
	a := newRank(t, 0, Options{})
	_, err = a.e.Connect(t.Context(), testlink.Marshal(t, closed))
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", "does not exist")
}

// TestStuckPeer has a peer that does nothing with what it was sent: every call fails.
func TestStuckPeer(t *testing.T) {
	a, b := newRank(t, 0, Options{Timeout: 200 * time.Millisecond}), newRank(t, 1, Options{})
	ab := connect(t, a, b)
	src, dst := memory(t, a, onDevice, 4096), imported(t, a, memory(t, b, onDevice, 4096))
	before, err := ab.Mark()
	testerr.Check(t, err)
	release := b.hold()
	defer release()
	testerr.Check(t, ab.Write(dst, 0, src, 0, 4096))
	behind := testerr.Must(ab.Mark())(t)
	testerr.Expect(t, ab.Flush(t.Context()), mscclgo.ErrRemote, "rank 0, peer 1", "done nothing for", "1 entries waiting")
	if ok, err := before.Done(); !ok || err != nil {
		t.Errorf("a mark before all is done: %v, %v", ok, err)
	}
	_, err = behind.Done()
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Expect(t, ab.Write(dst, 0, src, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Expect(t, ab.UpdateAndSync(dst, 0, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	if err := ab.Close(); err != nil { // which the calls have returned
		t.Error(err)
	}
}

// TestPeerCloses has the peer's transport close in good order.
func TestPeerCloses(t *testing.T) {
	told := make(chan error, 1)
	a, b := newRank(t, 0, Options{Lost: func(_ int, err error) { told <- err }}), newRank(t, 1, Options{})
	ab := connect(t, a, b)
	src, dst := memory(t, a, onDevice, 64), imported(t, a, memory(t, b, onDevice, 64))
	testerr.Check(t, errors.Join(ab.Write(dst, 0, src, 0, 64), ab.Flush(t.Context()), b.t.Close()))
	testerr.Expect(t, failed(t, &ab.d.half), mscclgo.ErrRemote, "has closed the connection")
	testerr.Expect(t, ab.Write(dst, 0, src, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Report(t, ab.Close())
	select {
	case err := <-told:
		t.Errorf("Lost says %v", err)
	default: // failed has returned, and it would have been called before
	}
}

// TestLost has the other end die, or its device fail, of one that sends or one that receives.
func TestLost(t *testing.T) {
	ends := map[string]struct {
		of   func(t *testing.T, ranks [2]*rank, rank int)
		says string
	}{
		"hangs up": {func(t *testing.T, ranks [2]*rank, rank int) { ranks[rank].die() }, "its process has ended"},
		"fails": {func(t *testing.T, ranks [2]*rank, rank int) {
			if rank == 1 {
				receiverOf(t, ranks[1]).Broken(errors.New("out of order"))
				return
			}
			for _, c := range message.All[*conn](&ranks[0].t.rank) {
				c.Broken(errors.New("out of order"))
			}
		}, "its device or system failed, though its process lives"},
	}
	for name, end := range ends {
		for _, dies := range []int{0, 1} {
			t.Run(fmt.Sprintf("rank %d %s", dies, name), func(t *testing.T) {
				told := make(chan error, 10)
				var ranks [2]*rank
				for i := range ranks {
					o := Options{}
					if i != dies {
						o.Lost = func(peer int, err error) {
							if peer != dies {
								t.Errorf("Lost names rank %d, want %d", peer, dies)
							}
							told <- err
						}
					}
					ranks[i] = newRank(t, i, o)
				}
				connect(t, ranks[0], ranks[1])
				receiverOf(t, ranks[1])
				end.of(t, ranks, dies)
				select {
				case err := <-told:
					testerr.Expect(t, err, mscclgo.ErrRemote, end.says)
				case <-time.After(testlink.Timeout):
					t.Error("Lost says nothing")
				}
			})
		}
	}
}

// TestLostRefused has the peer refuse a write, as it has closed the buffer: this rank is told at once, though it does
// nothing more.
func TestLostRefused(t *testing.T) {
	told := make(chan error, 10)
	a, b := newRank(t, 0, Options{Lost: func(_ int, err error) { told <- err }}), newRank(t, 1, Options{})
	way(t, connect(t, a, b), a, b, onDevice, onDevice).RefusedAtOnce(t, told)
}

// TestLostConnect has contexts end while a rank connects, at all times: the peer, which may have made the ring by
// then, loses nobody.
func TestLostConnect(t *testing.T) {
	o := Options{Lost: func(peer int, err error) { t.Errorf("rank %d is lost: %v", peer, err) }}
	a, b := newRank(t, 0, o), newRank(t, 1, o)
	about := testlink.Marshal(t, b.e)
	testlink.EndWhileConnecting(t, func(ctx context.Context) (*connection.Connection, error) { return a.e.Connect(ctx, about) })
	// One whose context ended when the ring was on its way.
	ask := request{from: 0, to: 1, endpoint: b.e.about.id}
	for range 20 {
		testerr.Check(t, fdpass.Connect(t.Context(), b.t.key, b.t.server.Name(), ask.encode(), func(_ fdpass.Answer, sock *net.UnixConn) error {
			return sock.Close()
		}))
	}
	for end := time.Now().Add(testlink.Timeout); ; time.Sleep(time.Millisecond) {
		if receivers := message.All[*receiver](&b.t.rank); len(receivers) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("rings stay that nobody has")
		}
	}
}

// TestCloseAfterTheGroupFailed has the group fail while a peer does nothing with what it was
// sent: closing the connection, or a memory, does not wait for it.
func TestCloseAfterTheGroupFailed(t *testing.T) {
	for _, first := range []string{"connection", "memory"} {
		t.Run(first, func(t *testing.T) {
			group := make(chan struct{})
			a, b := newMortalRank(t, 0, Options{}, group), newRank(t, 1, Options{})
			ab := connect(t, a, b)
			src, mine := memory(t, a, onDevice, 16<<20), memory(t, b, onDevice, 16<<20)
			release := b.hold()
			defer release()
			testerr.Check(t, ab.Write(imported(t, a, mine), 0, src, 0, 16<<20))
			start := time.Now()
			time.AfterFunc(50*time.Millisecond, func() { close(group) })
			var errs []error
			if first == "memory" {
				errs = append(errs, src.Close())
			}
			testerr.Report(t, errors.Join(append(errs, ab.Close())...))
			if took := time.Since(start); took > testlink.Timeout/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestDiesDuringCopies has the peer die while a write's bytes are copied into the ring, by the
// device or the host. Closing the source waits for that: its owner may free it then.
func TestDiesDuringCopies(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
			ab := connect(t, a, b)
			receiverOf(t, b) // which dies with the rank
			src, dst := memory(t, a, k, 64), imported(t, a, memory(t, b, onDevice, 64))
			var release func()
			if k == pinned {
				release = a.hold()
			} else {
				release = testlink.HoldStream(t, ab.d.stream)
			}
			defer release()
			testerr.Check(t, ab.Write(dst, 0, src, 0, 64))
			testlink.Eventually(t, "the write is being copied", func() bool {
				ab.d.Mu.Lock()
				defer ab.d.Mu.Unlock()
				return ab.d.Taken == 1
			})
			b.die()
			testerr.Expect(t, failed(t, &ab.d.half), mscclgo.ErrRemote, "its process has ended")
			testdriver.CloseWaits(t, src, release)
		})
	}
}

// TestReadIntoClosed closes the memory that a read goes to, or only its buffer, before the answer
// is here. The bytes are dropped, and the connection goes on.
func TestReadIntoClosed(t *testing.T) {
	const size = 2048
	for _, k := range kinds {
		for _, what := range []string{"memory", "buffer"} {
			t.Run(fmt.Sprintf("%s of kind %s", what, k), func(t *testing.T) {
				a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
				ab := connect(t, a, b)
				mine := memory(t, b, k, size)
				testlink.Set(t, mine, testlink.Noise(size))
				src, into, next := imported(t, a, mine), memory(t, a, k, size), memory(t, a, k, size)
				release := b.hold()
				defer release()
				testerr.Check(t, errors.Join(ab.Read(into, 0, src, 0, size), ab.Read(next, 0, src, 0, size)))
				gone := func() error { return a.t.rank.Withdraw(into) } // as Close, once it has waited long enough for the read
				if what == "buffer" {
					gone = into.Buffer().Close
				}
				testerr.Check(t, gone())
				release()
				testerr.Check(t, ab.Flush(t.Context()))
				testcmp.Equal(t, "what was read next", testlink.Get(t, next), testlink.Noise(size))
			})
		}
	}
}

// TestCloseWhilePeerReadsNothing has a peer that reads none of many packets: neither
// closing memories nor closing the transport waits for it.
func TestCloseWhilePeerReadsNothing(t *testing.T) {
	b := newRank(t, 1, Options{})
	newRogue(t, b)
	var all []*registeredmem.Memory
	for range 2000 {
		all = append(all, memory(t, b, pinned, 64))
	}
	start := time.Now()
	for _, m := range all {
		testerr.Check(t, m.Close())
	}
	testerr.Report(t, b.t.Close())
	if took := time.Since(start); took > testlink.Timeout/2 {
		t.Errorf("it took %v", took)
	}
}

// TestRefusals has the peer refuse what was on its way. Both ranks' errors say why.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		send func(a *link, dst, src *registeredmem.Memory) error
		says string
	}{
		"write":       {func(a *link, dst, src *registeredmem.Memory) error { return a.Write(dst, 128, src, 0, 64) }, "rank 1 refused a write of 64 bytes at 128 to memory 0: it was closed"},
		"large write": {func(a *link, dst, src *registeredmem.Memory) error { return a.Write(dst, 0, src, 0, src.Size()) }, "rank 1 refused 524288 bytes at 0, part of a write of 16777216, to memory 0: it was closed"},
		"update":      {func(a *link, dst, _ *registeredmem.Memory) error { return a.UpdateAndSync(dst, 8, 0, 1) }, "rank 1 refused a new value of the word at 8 of memory 0: it was closed"},
		"store":       {func(a *link, dst, _ *registeredmem.Memory) error { return a.Store(dst, 8, 1) }, "rank 1 refused a new value of the word at 8 of memory 0: it was closed"},
		"addition":    {func(a *link, dst, _ *registeredmem.Memory) error { return a.Add(dst, 8, 1) }, "rank 1 refused an addition at 8 of memory 0: it was closed"},
		"exchange":    {func(a *link, dst, src *registeredmem.Memory) error { return a.Exchange(src, 0, dst, 8, 1) }, "rank 1 refused an exchange at 8 of memory 0: it was closed"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newRank(t, 0, Options{}), newRank(t, 1, Options{})
			ab := connect(t, a, b)
			src, mine := memory(t, a, onDevice, 16<<20), memory(t, b, onDevice, 16<<20)
			dst := imported(t, a, mine)
			r := receiverOf(t, b)
			b.t.rank.Targets.Remove(mine.ID()) // so that the peers do not hear of it
			testerr.Check(t, c.send(ab, dst, src))
			testerr.Expect(t, ab.Flush(t.Context()), mscclgo.ErrRemote, "rank 0, peer 1", c.says)
			testerr.Expect(t, failed(t, &r.half), mscclgo.ErrRemote, "memory 0, which is closed")
		})
	}
}
