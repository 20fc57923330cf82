package ethernet

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testdriver"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

var secret = [32]byte{2}

// rank is a rank of a test: nothing of it is mapped.
type rank struct {
	reg *registeredmem.Registry
	t   *Transport
	e   *endpoint
	log *testlink.Log

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

// loopback are options for a test.
func loopback() Options {
	return Options{Secret: secret, Interface: "127.0.0.0/8", Timeout: testlink.Timeout}
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
	reg := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{
		Rank: number, Group: [16]byte{1}, Secret: [32]byte{3}, Device: testdev.Open(t, number), Timeout: testlink.Timeout, Unmapped: true, Failed: failed,
	}))(t)
	r := &rank{reg: reg, log: &testlink.Log{}}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	r.t = testerr.Must(newTransport(reg, o, patience))(t)
	r.t.rank.Host = r.host
	t.Cleanup(func() {
		if err := errors.Join(reg.Close(), r.t.Close()); err != nil {
			t.Errorf("closing rank %d: %v", number, err)
		}
	})
	e := testerr.Must(r.t.NewEndpoint())(t)
	r.e = e.(*endpoint)
	return r
}

// link is a connection with its driver.
type link struct {
	*connection.Connection
	d *conn
}

func newLink(t testing.TB, d *conn) *link {
	t.Helper()
	c := testerr.Must(connection.New(d.t.rank.Registry, d.Peer, registeredmem.Ethernet, d))(t)
	t.Cleanup(func() { c.Close() })
	return &link{c, d}
}

// connect connects two ranks' endpoints, the lower's first.
func connect(t testing.TB, a, b *rank) (ab, ba *link) {
	t.Helper()
	one := testerr.Must(a.e.connect(t.Context(), testlink.Marshal(t, b.e)))(t)
	ab = newLink(t, one)
	two := testerr.Must(b.e.connect(t.Context(), testlink.Marshal(t, a.e)))(t)
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
	m := testlink.Memory(t, r.reg, alloc, size)
	if k == reachable {
		p := m.Buffer().Ptr()
		r.reachable.Store(p, true)
		t.Cleanup(func() { r.reachable.Delete(p) })
	}
	return m
}

// imported returns a rank's memory as another reaches it.
func imported(t testing.TB, to *rank, m *registeredmem.Memory) *registeredmem.Memory {
	t.Helper()
	return testlink.Import(t, to.reg, m)
}

// way is a connection with memory at both ends, of kinds.
func way(t testing.TB, c *link, from, to *rank, src, dst kind) *testdriver.Way {
	t.Helper()
	mine := memory(t, to, dst, 64)
	return &testdriver.Way{Connection: c.Connection, Src: memory(t, from, src, 64), Mine: mine, Theirs: imported(t, from, mine)}
}

// failed waits until a connection has failed and returns why.
func failed(t testing.TB, c *link) error {
	t.Helper()
	testlink.Eventually(t, "the connection fails", c.d.Over)
	c.d.Mu.Lock()
	defer c.d.Mu.Unlock()
	return c.d.Failure()
}
