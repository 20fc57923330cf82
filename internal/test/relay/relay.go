// Package relay has a connection for tests that leads over another one, with what the
// test wants threads in C to use.
package relay

import (
	"sync/atomic"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Driver is a driver that does everything on another connection, and counts that. The
// test chooses what it offers to threads in C.
type Driver struct {
	conn  *connection.Connection
	queue *native.Queue
	calls atomic.Int64
}

// New returns a connection of a registry to a peer over another such connection,
// which it owns. Threads in C use the queue, which may be nil.
func New(t testing.TB, reg *registeredmem.Registry, peer int, conn *connection.Connection, queue *native.Queue) (*connection.Connection, *Driver) {
	t.Helper()
	r := &Driver{conn: conn, queue: queue}
	c, err := connection.New(reg, peer, conn.Transport(), r)
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

// Calls returns how many writes, reads, stores, atomic operations, updates and marks went through Go.
func (r *Driver) Calls() int { return int(r.calls.Load()) }

// Ready reports true: the tests put no more on the other connection than it takes.
func (r *Driver) Ready(connection.Kind, uint64) bool { return true }

// Submit does an operation over the other connection.
func (r *Driver) Submit(o connection.Operation) error {
	r.calls.Add(1)
	turn := r.conn.Internal().Turn()
	defer turn.End()
	return turn.Do(o)
}

// NewMark returns a mark on the other connection.
func (r *Driver) NewMark() (connection.DriverMark, error) { return &relayMark{relay: r}, nil }

// Close closes the other connection.
func (r *Driver) Close() error { return r.conn.Close() }

// NativeQueue returns the queue that the test chose.
func (r *Driver) NativeQueue() *native.Queue { return r.queue }

// NativeError returns an error that names the operation and the code.
func (r *Driver) NativeError(f native.Failure) error {
	return mscclgo.Errorf(mscclgo.ErrRemote, "relay", "operation %d has code %d", f.Op, f.Code)
}

// relayMark is a mark of the other connection's.
type relayMark struct {
	relay *Driver
	mark  connection.Mark
}

func (m *relayMark) Set() (err error) {
	m.relay.calls.Add(1)
	m.mark, err = m.relay.conn.Mark()
	return err
}

func (m *relayMark) Reached() (bool, error) { return m.mark.Done() }
func (m *relayMark) Close() error           { return nil }
