package shm

import (
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/gpu"
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
	conns, receivers := message.All[*conn](&r.t.rank), message.All[*receiver](&r.t.rank)
	for _, c := range conns {
		c.sock.Close()
	}
	for _, one := range receivers {
		one.sock.Close()
	}
}

func newRank(t testing.TB, number int, o Options) *rank {
	t.Helper()
	return newMortalRank(t, number, o, nil)
}

// newMortalRank returns a rank whose group has failed once failed is closed.
func newMortalRank(t testing.TB, number int, o Options, failed <-chan struct{}) *rank {
	t.Helper()
	reg := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{
		Rank: number, Group: [16]byte{1}, Secret: [32]byte{3}, Device: testdev.Open(t, number), Timeout: testlink.Timeout, Unmapped: true, Failed: failed,
	}))(t)
	r := &rank{reg: reg, log: &testlink.Log{}}
	o.Secret = secret
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	}
	r.t = testerr.Must(New(reg, o))(t)
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

// connect connects a rank to another.
func connect(t testing.TB, from, to *rank) *link {
	t.Helper()
	d := testerr.Must(from.e.connect(t.Context(), testlink.Marshal(t, to.e)))(t)
	c := testerr.Must(connection.New(from.reg, d.Peer, registeredmem.SHM, d))(t)
	t.Cleanup(func() { c.Close() })
	return &link{c, d}
}

// receiverOf returns the end of a rank that has one only.
func receiverOf(t testing.TB, r *rank) *receiver {
	t.Helper()
	var one *receiver
	testlink.Eventually(t, "the peer receives", func() bool {
		all := message.All[*receiver](&r.t.rank)
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
	return testlink.Memory(t, r.reg, alloc, size)
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

// failed waits until a half has failed and returns why.
func failed(t testing.TB, h *half) error {
	t.Helper()
	testlink.Eventually(t, "the connection fails", h.Over)
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Failure()
}
