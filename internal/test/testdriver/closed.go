// Package testdriver has tests of transports' drivers that go behind the checks of package connection.
package testdriver

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Driver is what the tests use of one.
type Driver interface {
	connection.Driver
	connection.ReadDriver
	connection.AtomicDriver
}

// ClosedMeanwhile closes a memory of this rank and has the driver of c use it, with a memory of
// the peer: the driver finds closed what the front of a connection may have found open.
func ClosedMeanwhile(t *testing.T, c *connection.Connection, d Driver, own, theirs *registeredmem.Memory) {
	t.Helper()
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"write":    d.Write(theirs, 0, own, 0, 8),
		"read":     d.Read(own, 0, theirs, 0, 8),
		"exchange": d.Exchange(own, 0, theirs, 0, 1),
	} {
		t.Run(name, func(t *testing.T) { testerr.Expect(t, err, mscclgo.ErrInvalid, own.String()+" is closed") })
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
