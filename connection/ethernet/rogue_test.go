package ethernet

import (
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// rogue is a member of the group, rank 0, that sends what it likes.
type rogue struct {
	control net.Conn
	data    []net.Conn
	conn    *link // of the rank that it connected to
}

// rawDial opens a socket to a rank.
func rawDial(t testing.TB, to *rank) net.Conn {
	t.Helper()
	nc := testerr.Must(net.Dial("tcp", to.t.addrs[0]))(t)
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(testlink.Timeout))
	return nc
}

// claimFor is a claim that fits a rank's endpoint.
func claimFor(to *rank, sockets uint8) *claim {
	c := &claim{from: 0, to: to.e.about.rank, acceptor: to.e.about.id, sockets: sockets}
	rand.Read(c.dialer[:])
	rand.Read(c.connection[:])
	return c
}

func newRogue(t testing.TB, to *rank, sockets int) *rogue {
	t.Helper()
	// The rogue does not read why it was refused. Before it dials: the connection reads that.
	if to.t.rank.Parting == message.Parting {
		to.t.rank.Parting = time.Millisecond
	}
	c := claimFor(to, uint8(1+sockets))
	r := &rogue{}
	for i := range c.sockets {
		c.socket = i
		nc := testerr.Must(to.t.member.Client(t.Context(), rawDial(t, to), c.encode()))(t)
		if i == 0 {
			r.control = nc
		} else {
			r.data = append(r.data, nc)
		}
	}
	made := testerr.Must(to.e.take(t.Context(), c.dialer, nil))(t)
	r.conn = newLink(t, made)
	return r
}

// send sends a frame's head and payload on a data socket.
func (r *rogue) send(t testing.TB, socket int, f message.Frame, payload ...byte) {
	t.Helper()
	b := make([]byte, message.FrameSize)
	f.Encode(b)
	testerr.Must(r.data[socket].Write(append(b, payload...)))(t)
}

// acknowledge has the rogue say that so many operations are done.
func (r *rogue) acknowledge(t testing.TB, n uint64) {
	t.Helper()
	head := make([]byte, message.FrameSize)
	(&message.Frame{Kind: message.Ack, Op: n}).Encode(head)
	testerr.Must(r.control.Write(head))(t)
}

// awaitTaken waits until the other end sends so many operations: the rogue may not speak of them before.
func (r *rogue) awaitTaken(t testing.TB, n uint64) {
	t.Helper()
	testlink.Eventually(t, "the operations are taken", func() bool {
		r.conn.d.Mu.Lock()
		defer r.conn.d.Mu.Unlock()
		return r.conn.d.Taken >= n
	})
}

func (r *rogue) hangUp() {
	r.control.Close()
	for _, nc := range r.data {
		nc.Close()
	}
}

// rogueMemory is memory of the rogue as a rank imports it: no such registry exists,
// only its bytes.
func rogueMemory(t testing.TB, r *rogue, to *rank) *registeredmem.Memory {
	t.Helper()
	other := newRank(t, 0, loopback())
	r.conn.d.PeerInstance = other.t.rank.Instance
	return imported(t, to, memory(t, other, onDevice, 4096))
}
