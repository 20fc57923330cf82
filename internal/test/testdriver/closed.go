// Package testdriver has tests of transports' drivers that go behind the checks of package connection.
package testdriver

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// ClosedMeanwhile closes a memory of this rank and has the driver of c use it, with a memory of
// the peer: the driver finds closed what the front of a connection may have found open.
func ClosedMeanwhile(t *testing.T, c *connection.Connection, d connection.Driver, own, theirs *registeredmem.Memory) {
	t.Helper()
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	for kind, n := range map[connection.Kind]uint64{connection.Write: 8, connection.Read: 8, connection.Exchange: 0} {
		t.Run(kind.String(), func(t *testing.T) {
			testerr.Expect(t, d.Submit(connection.Operation{Kind: kind, Theirs: theirs, Own: own, N: n, To: 1}), mscclgo.ErrInvalid, own.String()+" is closed")
		})
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}

// CloseWaits closes a memory that something still uses until release is called: Close waits for
// that, and for no more.
func CloseWaits(t *testing.T, m *registeredmem.Memory, release func()) {
	t.Helper()
	ClosedTogether(t, m, release, nil)
}
