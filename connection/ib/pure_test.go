package ib

import (
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/ib/internal/ledgertest"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestNoPeerMemory has a GPU's memory that is reached neither by its address nor as a dma-buf. Where a dma-buf is made
// and cannot be registered, that is what is told: the device could reach the memory.
func TestNoPeerMemory(t *testing.T) {
	for _, why := range []mscclgo.Kind{mscclgo.ErrUnsupported, mscclgo.ErrSystem} {
		s := &source{why: mscclgo.Errorf(why, "export", "no locked memory")}
		testerr.Expect(t, s.noPeerMemory("mlx5_0", syscall.EFAULT), why, "mlx5_0", "no locked memory", "nvidia_peermem")
	}
}

// TestOrdered has a GPU whose kernels may see a signal before the data.
func TestOrdered(t *testing.T) {
	testerr.Expect(t, ordered(gpu.Info{Name: "cuda:1", Model: "Tesla"}), mscclgo.ErrUnsupported, "cuda:1", "GPU_DIRECT_RDMA_WRITES_ORDERING", "other transports")
	testerr.Report(t, ordered(gpu.Info{Name: "cuda:1", RDMAOrdered: true}))
}

func TestOptions(t *testing.T) {
	t.Setenv(EnvDevice, "mlx5_9")
	t.Setenv(envPort, "2")
	t.Setenv(envTrafficClass, "106")
	t.Setenv(envNoAtomics, "1")
	o, err := Options{}.complete(time.Second)
	if err != nil || o.Device != "mlx5_9" || o.Port != 2 || o.TrafficClass != 106 || !o.NoAtomics || o.Depth != 256 || o.Retries != 6 || o.RNRRetries != 7 || o.Timeout != time.Second || ackExponent(o.AckTimeout) != 14 {
		t.Errorf("the defaults are %+v, %v", o, err)
	}
	if o, err := (Options{Retries: -1, Device: "a", Port: 1}).complete(1); err != nil || o.Retries != 0 || o.Device != "a" || o.Port != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for want, o := range map[string]Options{
		"Port": {Port: -1}, "GIDIndex": {GIDIndex: 256}, "QueuePairs": {QueuePairs: 17}, "Depth": {Depth: 8}, "MTU": {MTU: 1500},
		"ServiceLevel": {ServiceLevel: 16}, "TrafficClass": {TrafficClass: 256}, "AckTimeout": {AckTimeout: -1},
		"Retries": {Retries: 8}, "RNRRetries": {RNRRetries: -2}, "Timeout": {Timeout: -1},
	} {
		_, err := o.complete(time.Second)
		testerr.Expect(t, err, mscclgo.ErrInvalid, want)
	}
	t.Setenv(envGIDIndex, "three")
	_, err = Options{}.complete(1)
	testerr.Expect(t, err, mscclgo.ErrInvalid, envGIDIndex, "three")
	names, err := devices("a, b")
	testerr.Report(t, err)
	testcmp.Equal(t, "the devices", names, []string{"a", "b"})
	_, err = devices("a,,b")
	testerr.Expect(t, err, mscclgo.ErrInvalid, "empty name")
	_, err = devices(strings.Repeat("a,", 16) + "a")
	testerr.Expect(t, err, mscclgo.ErrInvalid, "17 devices")
	for d, want := range map[time.Duration]uint8{1: 1, ackUnit * 4: 2, ackUnit*4 + 1: 3, maxAckTimeout: 31} {
		if e := ackExponent(d); e != want {
			t.Errorf("%v is %d, want %d", d, e, want)
		}
	}
}

// newUnconnected returns a driver whose queue pair, of a depth, has requests of at most max bytes
// and no device.
func newUnconnected(t *testing.T, depth int, max uint64) *conn {
	q := &queue{qp: &verbs.QP{}, cq: &verbs.CQ{}, nic: &nic{}, max: max}
	c := &conn{
		t:      &Transport{reg: newRegistry(t, 0), o: Options{Logger: slog.New(slog.DiscardHandler)}},
		queues: []*queue{q}, peer: 1, adds: true, remotes: map[*registeredmem.Memory]*key{nil: nil},
	}
	c.native, c.c = newState(c.queues, depth)
	c.mu = lockOf(c.c)
	return c
}

// TestReady has writes of as many requests as there is room for beside the others of a turn.
func TestReady(t *testing.T) {
	for _, w := range []struct {
		max, bytes uint64
		ready      bool
	}{{1 << 20, 11 << 20, true}, {1 << 20, 11<<20 + 1, false}, {1 << 30, 11 << 30, true}, {1 << 30, 64 << 20, true}, {1 << 16, 1 << 20, false}} {
		if c := newUnconnected(t, 16, w.max); c.Ready(connection.Write, w.bytes) != w.ready {
			t.Errorf("a write of %d bytes, at most %d a request: ready is %v", w.bytes, w.max, !w.ready)
		}
	}
}

// TestOldCount has counts of what the peer has applied that were asked for soon after the one before, or long
// after: only the latter say that it applies nothing.
func TestOldCount(t *testing.T) {
	for _, c := range []struct {
		after, since time.Duration // that one was learned, when the new one was asked for, and until now
		stuck        bool
	}{{time.Millisecond, time.Hour, false}, {time.Minute, time.Hour, true}, {time.Minute, time.Minute, true}} {
		d := newUnconnected(t, 16, 1)
		d.t.o.Timeout, d.scratch = time.Second, &scratch{bytes: make([]byte, 64)}
		d.out.sent, d.out.asked, d.queues[0].posted, d.queues[0].done = 1, 1, 1, 1
		d.out.since = time.Now().Add(-c.since)
		d.out.at = d.out.since.Add(c.after)
		if err := d.learn("ib: test", d.queues[0]); (err != nil) != c.stuck {
			t.Errorf("asked for %v after the last count, %v ago: %v", c.after, c.since, err)
		}
	}
}

// TestFirstFailure has a connection fail in C, and closed or failed again before anybody asks.
func TestFirstFailure(t *testing.T) {
	for name, again := range map[string]func(c *conn){
		"asked":  func(*conn) {},
		"closed": func(c *conn) { c.breaks(mscclgo.Errorf(mscclgo.ErrInvalid, "ib: close", "it is closed")) },
		"failed": func(c *conn) { c.fail(mscclgo.Errorf(mscclgo.ErrRemote, "ib: event", "an event")) },
	} {
		c := newUnconnected(t, 16, 1)
		c.c.failure.why, c.c.failure.code, c.c.failed = 2, 7, 1 // a poll
		again(c)
		for range 2 {
			testerr.Expect(t, c.failed("ib: try "+name), mscclgo.ErrSystem, "polling for completions", "the driver gave 7", "rank 0, peer 1")
		}
	}
}

// TestKnown has threads in C told of more memories than they can know whose numbers are alike, and
// one of these forgotten.
func TestKnown(t *testing.T) {
	c := newUnconnected(t, 16, 1)
	sets, ways := uint32(len(c.c.theirs)), len(c.c.theirs[0])
	b := testerr.Must(c.t.reg.Device().AllocHost(64))(t)
	defer b.Close()
	var alike []*registeredmem.Memory
	for len(alike) < ways+2 {
		m := testerr.Must(c.t.reg.Register(b))(t)
		defer m.Close()
		if m.ID()%sets == 3 {
			alike = append(alike, m)
		}
	}
	know := func(i int) { c.know(&key{base: 8, keys: []uint32{uint32(100 + i)}}, alike[i]) }
	expect := func(when string, want ...int) {
		t.Helper()
		var got []int
		for i, m := range alike {
			if at := wayOf(&c.c.theirs[3], uint64(m.ID())+1); at >= 0 {
				got = append(got, i)
				if k := c.c.theirs[3][at].keys[0]; int(k) != 100+i {
					t.Errorf("%s: the key of memory %d is %d", when, i, k)
				}
			}
		}
		testcmp.Equal(t, when, got, want)
	}
	for i := range ways {
		know(i)
	}
	expect("all ways are used", 0, 1, 2, 3)
	know(1)
	know(4)
	expect("one more", 1, 2, 3, 4)
	c.forget(alike[3].ID())
	c.forget(alike[0].ID()) // which they do not know
	expect("one is forgotten", 1, 2, 4)
	know(5)
	expect("in its place", 1, 2, 4, 5)
}

// testLedger is a ledger whose entries Go keeps.
type testLedger struct {
	ledger
	entries []entry
}

func newTestLedger(t *testing.T, depth int) *testLedger {
	l := &testLedger{entries: make([]entry, depth)}
	l.ledger = ledger{depth: uint64(depth), entries: &l.entries[0]}
	var pins runtime.Pinner
	pins.Pin(l.ledger.entries)
	t.Cleanup(pins.Unpin)
	return l
}

func (l *testLedger) add(e entry) (id uint64, signaled bool) {
	return ledgertest.Add(unsafe.Pointer(&l.ledger), unsafe.Pointer(&e), false)
}

func (l *testLedger) complete(id uint64) bool {
	return ledgertest.Complete(unsafe.Pointer(&l.ledger), id)
}

func (l *testLedger) conflict(next entry, same bool) uint64 {
	return ledgertest.Conflict(unsafe.Pointer(&l.ledger), unsafe.Pointer(&next), same)
}

func TestLedger(t *testing.T) {
	l := newTestLedger(t, 16)
	signals := 0
	for i := range 16 {
		id, signaled := l.add(entry{})
		if id != uint64(i) {
			t.Fatalf("request %d has number %d", i, id)
		}
		if signaled {
			signals++
		}
	}
	if signals != 4 || l.room() != 0 || l.signaled != 16 {
		t.Errorf("%d signals, room for %d, %d signaled", signals, l.room(), l.signaled)
	}
	if !l.complete(7) || l.room() != 8 {
		t.Errorf("room for %d after 8 completed", l.room())
	}
	for _, id := range []uint64{7, 0, 16, 1 << 63} {
		if l.complete(id) {
			t.Errorf("a completion of %d was believed", id)
		}
	}
}

// TestSilenceIsOfWhatIsDue has polls find nothing, which counts only while a completion is due.
func TestSilenceIsOfWhatIsDue(t *testing.T) {
	l := newTestLedger(t, 16)
	polls := func() (silent int64) {
		for range 64 {
			silent = max(silent, ledgertest.Silence(unsafe.Pointer(&l.ledger), false))
		}
		time.Sleep(time.Millisecond)
		return silent
	}
	l.add(entry{}) // asks for no completion
	polls()
	if silent := polls(); silent != 0 || l.polls != 0 {
		t.Errorf("no completion is due, and polls have found none for %d ns", silent)
	}
	for signaled := false; !signaled; {
		_, signaled = l.add(entry{})
	}
	last := l.posted - 1
	l.add(entry{})
	polls()
	if silent := polls(); silent < int64(time.Millisecond) {
		t.Errorf("a completion is due, and polls have found none for %d ns", silent)
	}
	if silent := ledgertest.Silence(unsafe.Pointer(&l.ledger), true); silent != 0 || l.polls != 0 {
		t.Errorf("a poll that found some has found none for %d ns", silent)
	}
	polls()
	l.complete(last)
	if silent := polls(); silent != 0 {
		t.Errorf("all that asked for a completion is done, and polls have found none for %d ns", silent)
	}
}

// TestConflicts adds a request of each kind and asks what another must wait for.
func TestConflicts(t *testing.T) {
	at := func(doing string, remote, local uint64) entry {
		return entry{there: part{memory: 1 + remote, place: remote}, here: part{memory: 1 + local, place: local}, n: 8, read: doing == "read", atomic: doing == "addition"}
	}
	const here, there, apart = "here", "at the peer", "apart"
	for _, c := range []struct {
		before, next, overlap string
		same, other           bool // whether it waits, on the same queue pair and on another
	}{
		{"write", "write", there, false, true}, {"write", "write", here, false, false},
		{"write", "read", there, false, true}, {"write", "read", here, true, true},
		{"read", "write", there, true, true}, {"read", "write", here, true, true},
		{"read", "read", there, false, false}, {"read", "read", here, false, true},
		{"write", "addition", there, false, true}, {"addition", "write", there, true, true},
		{"read", "addition", there, true, true}, {"addition", "read", there, false, true},
		{"addition", "addition", there, false, true},
		{"addition", "write", apart, false, false}, {"read", "addition", apart, false, false},
		{"write", "read", apart, false, false}, {"read", "write", apart, false, false},
	} {
		l := newTestLedger(t, 16)
		l.add(entry{}) // an empty write
		l.add(at(c.before, 0, 100))
		if c.before == "read" {
			l.waitFor = l.posted
		}
		next := at(c.next, 8, 108)
		switch c.overlap {
		case there:
			next.there.place = 7
		case here:
			next.here.place = 107
		}
		for _, same := range []bool{true, false} {
			want := uint64(0)
			if same && c.same || !same && c.other {
				want = 2
			}
			if got := l.conflict(next, same); got != want {
				t.Errorf("a %s behind a %s that it overlaps %s, same queue pair %v: it waits for %d, not %d", c.next, c.before, c.overlap, same, got, want)
			}
		}
		l.complete(1)
		if got := l.conflict(next, false); got != 0 {
			t.Errorf("a %s waits for a %s that is done", c.next, c.before)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, n := range []uint64{0, 1, spreadFrom - 1, spreadFrom, spreadFrom + 1, 1 << 20, 1<<26 + 5, 1 << 40} {
		for count := 1; count <= maxQueuePairs; count++ {
			var next uint64
			for i := range count {
				p := spread(n, i, count)
				if p.n > 0 && p.offset != next {
					t.Fatalf("%d bytes over %d: part %d at %d, not %d", n, count, i, p.offset, next)
				}
				next += p.n
			}
			if next != n {
				t.Fatalf("%d bytes over %d: %d carried", n, count, next)
			}
		}
	}
}

func TestKey(t *testing.T) {
	k := key{device: true, base: 4095, place: 1<<64 - 1, keys: []uint32{1, 2}}
	got, err := decodeKey(k.encode())
	testerr.Report(t, err)
	testcmp.Equal(t, "the key", got, k, cmp.AllowUnexported(key{}))
	full := key{keys: make([]uint32, maxQueuePairs)}
	if n := len(full.encode()); n > 256 {
		t.Errorf("a key has %d bytes", n)
	}
	beyond := key{base: maxBase, keys: []uint32{1}}
	for i, bad := range [][]byte{nil, {1, 0}, k.encode()[:10], append(k.encode(), 0), {keyVersion, 0, 0, 0, 0, 0, 0}, beyond.encode()} {
		if _, err := decodeKey(bad); err == nil {
			t.Errorf("bytes %d are believed", i)
		}
	}
}

func sample() description {
	return description{group: [16]byte{1}, rank: 3, registry: 1<<64 - 1, atomics: true, inbox: 77, anchor: 78, anchorBase: maxBase - 1, queues: []address{
		{nic: 0, mtu: 5, gid: [16]byte{15: 1}, number: 17, psn: max24, reads: 1},
		{nic: 1, infiniBand: true, mtu: 1, lid: 9, number: max24, reads: maxReads},
	}}
}

func TestDescription(t *testing.T) {
	d := sample()
	got, err := decode(d.encode())
	testerr.Report(t, err)
	testcmp.Equal(t, "the description", got, d, cmp.AllowUnexported(description{}, address{}))
	for name, change := range map[string]func(*description){
		"rank":                   func(d *description) { d.rank = 1 << 31 },
		"anchor":                 func(d *description) { d.anchorBase = maxBase },
		"queues":                 func(d *description) { d.queues = nil },
		"many":                   func(d *description) { d.queues = make([]address, 17) },
		"device":                 func(d *description) { d.queues[0].nic = 16 },
		"MTU":                    func(d *description) { d.queues[0].mtu = 6 },
		"reads":                  func(d *description) { d.queues[0].reads = 0 },
		"larger number of reads": func(d *description) { d.queues[0].reads = maxReads + 1 },
		"number":                 func(d *description) { d.queues[0].number = 1 << 24 },
		"PSN":                    func(d *description) { d.queues[1].psn = 1 << 24 },
	} {
		d := sample()
		change(&d)
		if _, err := decode(d.encode()); err == nil {
			t.Errorf("a wrong %s is believed", name)
		}
	}
}

// TestReads has two cards that answer and start different numbers of reads at a time.
func TestReads(t *testing.T) {
	small := &queue{nic: &nic{attributes: verbs.Attributes{Reads: 128, PeerReads: 1}}, about: address{reads: 1}}
	large := &queue{nic: &nic{attributes: verbs.Attributes{Reads: 4, PeerReads: 128}}, about: address{reads: maxReads}}
	small.peer, large.peer = large.about, small.about
	for _, q := range []struct {
		q             *queue
		starts, takes uint8
	}{{small, maxReads, 1}, {large, 1, maxReads}} {
		if p := q.q.path(&Options{}); p.Reads != q.starts || p.PeerReads != q.takes {
			t.Errorf("it starts %d and takes %d, not %d and %d", p.Reads, p.PeerReads, q.starts, q.takes)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	d := sample()
	f.Add(d.encode())
	f.Add([]byte("MGIB"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := decode(data)
		if err == nil {
			testcmp.Equal(t, "the bytes encoded again", d.encode(), data)
		}
	})
}

func FuzzKey(f *testing.F) {
	k := key{device: true, base: 8, keys: []uint32{5}}
	f.Add(k.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := decodeKey(data)
		if err == nil {
			testcmp.Equal(t, "the bytes encoded again", k.encode(), data)
		}
	})
}

// broken is something that cannot be closed.
type broken struct{ err error }

func (b broken) Close() error { return b.err }

// TestClosedTogether closes a transport by two goroutines at once, of which a connection cannot be freed.
func TestClosedTogether(t *testing.T) {
	c := broken{errors.New("not freed")}
	tr := &Transport{reg: newRegistry(t, 0), cancel: func() {}, live: map[closer]struct{}{c: {}}}
	tr.changing.Add(1)
	testdriver.ClosedTogether(t, tr, tr.changing.Done, c.err)
}
