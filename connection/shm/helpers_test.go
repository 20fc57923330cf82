package shm

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
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

	reachable bool         // the host reaches the memory of devices if ever it can
	held      sync.RWMutex // locked: what peers send to the rank is not done
}

// host keeps a rank from reaching what is in the memory of an emulated device, as GPUs do.
func (r *rank) host(b *gpu.Buffer) []byte {
	r.held.RLock()
	defer r.held.RUnlock()
	if r.reachable {
		return b.HostBytes()
	}
	return b.Bytes()
}

// hold keeps what peers send from being done.
func (r *rank) hold() (release func()) {
	r.held.Lock()
	return sync.OnceFunc(r.held.Unlock)
}

// die hangs up all of the rank's sockets, as the end of its process would.
func (r *rank) die() {
	conns, receivers := r.t.all()
	for _, c := range conns {
		c.sock.Close()
	}
	for _, one := range receivers {
		one.sock.Close()
	}
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

func newRank(t testing.TB, number int, o Options) *rank {
	t.Helper()
	return newMortalRank(t, number, o, nil)
}

// newMortalRank returns a rank whose group has failed once failed is closed.
func newMortalRank(t testing.TB, number int, o Options, failed <-chan struct{}) *rank {
	t.Helper()
	reg, err := registeredmem.NewRegistry(registeredmem.Options{
		Rank: number, Group: [16]byte{1}, Secret: [32]byte{3}, Device: testdev.Open(t, number), Timeout: longTimeout, Unmapped: true, Failed: failed,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rank{reg: reg, log: &logs{}}
	o.Secret = secret
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	if r.t, err = New(reg, o); err != nil {
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

// connect connects a rank to another.
func connect(t testing.TB, from, to *rank) *link {
	t.Helper()
	d, err := from.e.connect(t.Context(), marshal(t, to.e))
	if err != nil {
		t.Fatal(err)
	}
	c, err := connection.New(from.reg, d.Peer, registeredmem.SHM, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &link{c, d}
}

// receiverOf returns the end of a rank that has one only.
func receiverOf(t testing.TB, r *rank) *receiver {
	t.Helper()
	var one *receiver
	eventually(t, "the peer receives", func() bool {
		_, all := r.t.all()
		if len(all) == 1 {
			one = all[0]
		}
		return one != nil
	})
	return one
}

// kind is where a test's memory is.
type kind string

const (
	onDevice kind = "device"
	pinned   kind = "pinned"
)

var kinds = []kind{onDevice, pinned}

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
	if err := gpu.CopyOut(got, m.Buffer()); err != nil {
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

// failed waits until a half has failed and returns why.
func failed(t testing.TB, h *half) error {
	t.Helper()
	eventually(t, "the connection fails", h.Over)
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Failure()
}

// openFiles counts this process's descriptors.
func openFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
