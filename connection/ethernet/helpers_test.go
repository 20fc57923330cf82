package ethernet

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const longTimeout = 20 * time.Second

var secret = [32]byte{2}

// rank is a rank of a test: nothing of it is mapped.
type rank struct {
	reg *registeredmem.Registry
	t   *Transport
	e   *Endpoint
	log *logs

	reachable sync.Map // the gpu.Ptr of memories of that kind
}

// host keeps a rank from reaching what is in the memory of an emulated device, as
// GPUs do, but for memory of the kind reachable.
func (r *rank) host(b *gpu.Buffer) []byte {
	if _, ok := r.reachable.Load(b.Ptr()); ok {
		return b.HostBytes()
	}
	return b.Bytes()
}

// logs keeps what a rank logs.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// loopback are options for a test.
func loopback() Options {
	return Options{Secret: secret, Interface: "127.0.0.0/8", Timeout: longTimeout}
}

func newRank(t testing.TB, number int, o Options) *rank {
	t.Helper()
	return newImpatientRank(t, number, o, handshake.DefaultPatience)
}

// newImpatientRank returns a rank with another bound on handshakes.
func newImpatientRank(t testing.TB, number int, o Options, patience time.Duration) *rank {
	t.Helper()
	return newMortalRank(t, number, o, patience, nil)
}

// newMortalRank returns a rank whose group has failed once failed is closed.
func newMortalRank(t testing.TB, number int, o Options, patience time.Duration, failed <-chan struct{}) *rank {
	t.Helper()
	reg, err := registeredmem.NewRegistry(registeredmem.Options{
		Rank: number, Group: [16]byte{1}, Secret: [32]byte{3}, Device: testdev.Open(t, number), Timeout: longTimeout, Unmapped: true, Failed: failed,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rank{reg: reg, log: &logs{}}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	if r.t, err = newTransport(reg, o, patience); err != nil {
		t.Fatal(err)
	}
	r.t.rank.Host = r.host
	t.Cleanup(func() {
		if err := errors.Join(reg.Close(), r.t.Close()); err != nil {
			t.Errorf("closing rank %d: %v", number, err)
		}
	})
	if r.e, err = r.t.NewEndpoint(); err != nil {
		t.Fatal(err)
	}
	return r
}

func marshal(t testing.TB, m interface{ MarshalBinary() ([]byte, error) }) []byte {
	t.Helper()
	data, err := m.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// link is a connection with its driver.
type link struct {
	*connection.Connection
	d *conn
}

func newLink(t testing.TB, d *conn) *link {
	t.Helper()
	c, err := connection.New(d.t.rank.Registry, d.Peer, registeredmem.Ethernet, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &link{c, d}
}

// connect connects two ranks' endpoints, the lower's first.
func connect(t testing.TB, a, b *rank) (ab, ba *link) {
	t.Helper()
	one, err := a.e.connect(t.Context(), marshal(t, b.e))
	if err != nil {
		t.Fatal(err)
	}
	ab = newLink(t, one)
	two, err := b.e.connect(t.Context(), marshal(t, a.e))
	if err != nil {
		t.Fatal(err)
	}
	return ab, newLink(t, two)
}

// kind is where a test's memory is.
type kind string

const (
	onDevice  kind = "device"
	pinned    kind = "pinned"
	reachable kind = "reachable" // of a device, and the host reaches it if ever it can
)

var kinds = []kind{onDevice, pinned, reachable}

// memory registers size bytes of zeros at a rank.
func memory(t testing.TB, r *rank, k kind, size uint64) *registeredmem.Memory {
	t.Helper()
	alloc := r.reg.Device().Alloc
	if k == pinned {
		alloc = r.reg.Device().AllocHost
	}
	b, err := alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if k == reachable {
		r.reachable.Store(b.Ptr(), true)
		t.Cleanup(func() { r.reachable.Delete(b.Ptr()) })
	}
	if k != pinned {
		if err := gpu.CopyIn(b, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := r.reg.Register(b)
	if err != nil {
		t.Fatal(err)
	}
	// Before the buffer is closed: writes may still arrive.
	t.Cleanup(func() { m.Close() })
	return m
}

// imported returns a rank's memory as another reaches it.
func imported(t testing.TB, to *rank, m *registeredmem.Memory) *registeredmem.Memory {
	t.Helper()
	got, err := to.reg.Import(t.Context(), marshal(t, m))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func get(t testing.TB, m *registeredmem.Memory) []byte {
	t.Helper()
	got := make([]byte, m.Size())
	if host := m.Buffer().Bytes(); host != nil {
		copy(got, host)
	} else if err := gpu.CopyOut(got, m.Buffer()); err != nil {
		t.Fatal(err)
	}
	return got
}

func set(t testing.TB, m *registeredmem.Memory, data []byte) {
	t.Helper()
	if err := gpu.CopyIn(m.Buffer(), data); err != nil {
		t.Fatal(err)
	}
}

// noise returns n random bytes.
func noise(n uint64) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// eventually polls until what holds, or fails the test.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(longTimeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
	}
}

// failed waits until a connection has failed and returns why.
func failed(t testing.TB, c *link) error {
	t.Helper()
	eventually(t, "the connection fails", c.d.Over)
	c.d.Mu.Lock()
	defer c.d.Mu.Unlock()
	return c.d.Failure()
}
