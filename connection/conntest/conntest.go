// Package conntest tests connections. A transport's tests call [TestConnection]
// with a function that makes two connected ranks. All transports of this module
// are tested so, and a new [connection.Driver] can be.
package conntest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Rank is one of two ranks in this process that are connected to each other.
type Rank struct {
	// Registry is the rank's, in which the tests register memory.
	Registry *registeredmem.Registry

	// Connection leads to the other rank.
	Connection *connection.Connection

	// Allocates reports that the rank's device or transport allocates Go memory for
	// work that it is given, as emulated devices do.
	Allocates bool

	// Waits reports that an update behind a write always waits for the peer, so that
	// no turn has both without a wait.
	Waits bool

	// Tears reports that a reader may see a part of a value that is being stored, as over
	// Soft-RoCE, which copies byte by byte.
	Tears bool

	// Apart reports that Connection's additions and exchanges are not atomic to what the other
	// rank's host and device do, and that an exchange always waits for the peer, so that no turn
	// has one without a wait. Both are so over InfiniBand.
	Apart bool

	// Hold, if not nil, keeps what Connection queues from being done, until
	// release is called. It may be called twice.
	Hold func() (release func())

	// Heard, if not nil, reports whether Connection has heard that the other rank has closed
	// that memory of its own. Calls on it must be refused then, and the connection works on.
	// Until it has heard, and where news comes only to a connection that was used before, such a
	// call may fail the connection. Without Heard that is not tested; mapped memory stays.
	Heard func(closed *registeredmem.Memory) bool

	// Kill, if not nil, ends the rank's transport as the death of its process
	// would. The other rank's connection must fail then. Where a transport has no
	// need of the peer's process Kill is nil.
	Kill func()
}

// Maker makes ranks 0 and 1, which are connected. The caller changes and closes
// the connections and memories. What else is made is closed by cleanup functions
// of t.
type Maker func(t testing.TB) (a, b *Rank)

// patience bounds what tests wait for. Some run in emulated machines.
var patience = 60 * time.Second

// TestConnection tests what [connection.Connection] promises of every transport.
// Each of its parts is a subtest with a pair of its own. What should return and does
// not fails a part after a minute or two, and then no more parts are run.
func TestConnection(t *testing.T, make Maker) {
	for _, part := range []struct {
		name string
		test func(*testing.T, *pair)
	}{
		{"Writes", testWrites},
		{"OrderOfWrites", testOrderOfWrites},
		{"EachArrives", testEachArrives},
		{"Words", testWords},
		{"Puts", testPuts},
		{"LargePuts", testLargePuts},
		{"FullBothWays", testFullBothWays},
		{"Goroutines", testGoroutines},
		{"WriteBytes", testWriteBytes},
		{"WriteBytesFull", testWriteBytesFull},
		{"Reads", testReads},
		{"OrderOfReads", testOrderOfReads},
		{"ReadsOfOnePlace", testReadsOfOnePlace},
		{"ReadThenUpdate", testReadThenUpdate},
		{"ReadsBothWays", testReadsBothWays},
		{"ReadsOfMany", testReadsOfMany},
		{"MarksOfReads", testMarksOfReads},
		{"ReadTurns", testReadTurns},
		{"WrongReads", testWrongReads},
		{"ReadOfClosed", testReadOfClosed},
		{"ReadsAndClose", testReadsAndClose},
		{"ReadsOfDeadPeer", testReadsOfDeadPeer},
		{"Stores", testStores},
		{"OrderOfStores", testOrderOfStores},
		{"StoreThenUpdate", testStoreThenUpdate},
		{"WrongStores", testWrongStores},
		{"StoresToDeadPeer", testStoresToDeadPeer},
		{"WordsOfSlices", testWordsOfSlices},
		{"Adds", testAdds},
		{"Exchanges", testExchanges},
		{"OrderOfAtomics", testOrderOfAtomics},
		{"AddThenUpdate", testAddThenUpdate},
		{"ExchangeTurns", testExchangeTurns},
		{"WrongAtomics", testWrongAtomics},
		{"AtomicsOfDeadPeer", testAtomicsOfDeadPeer},
		{"Turns", testTurns},
		{"Flush", testFlush},
		{"Marks", testMarks},
		{"Allocations", testAllocations},
		{"Contexts", testContexts},
		{"ContextsHeld", testContextsHeld},
		{"Misuse", testMisuse},
		{"OtherRegistries", func(t *testing.T, p *pair) {
			a, b := make(t)
			defer soon(func() { errors.Join(a.Connection.Close(), b.Connection.Close()) })
			testOtherRegistries(t, p, &pair{a, b})
		}},
		{"Close", testClose},
		{"CloseHeld", testCloseHeld},
		{"CloseUnderLoad", testCloseUnderLoad},
		{"ClosedMemory", testClosedMemory},
		{"MemoryClosedUnderLoad", testMemoryClosedUnderLoad},
		{"MemoryClosedAtPeer", testMemoryClosedAtPeer},
		{"MemoryHeardClosed", testMemoryHeardClosed},
		{"MemoryClosedAtPeerUnderLoad", testMemoryClosedAtPeerUnderLoad},
		{"BufferClosedAtPeer", testBufferClosedAtPeer},
		{"BufferClosedAtPeerUnderLoad", testBufferClosedAtPeerUnderLoad},
		{"DeadPeer", testDeadPeer},
		{"DeadPeerHeld", testDeadPeerHeld},
	} {
		begun := time.Now()
		if ok := t.Run(part.name, func(t *testing.T) {
			a, b := make(t)
			// A transport that has not done all that it says may still use the
			// memories, which are freed next.
			defer soon(func() { errors.Join(a.Connection.Close(), b.Connection.Close()) })
			part.test(t, &pair{a, b})
		}); !ok && time.Since(begun) >= patience {
			t.Fatalf("%s waited too long; the parts after it would too, and are not run", part.name)
		}
	}
}

// pair is two ranks that are connected to each other.
type pair struct{ a, b *Rank }

// back returns the pair with its ranks exchanged.
func (p *pair) back() *pair { return &pair{p.b, p.a} }

// rounds returns how often a part does what it does n times as a rule.
func (p *pair) rounds(n uint64) uint64 {
	if testdev.Slow() {
		return n / 5
	}
	return n
}

// kind is where a test's memory is.
type kind bool

const (
	device kind = false
	pinned kind = true
)

func (k kind) String() string {
	if k == pinned {
		return "pinned"
	}
	return "device"
}

// memory registers zeros at a rank, until the test ends.
func (r *Rank) memory(t testing.TB, k kind, size uint64) *registeredmem.Memory {
	t.Helper()
	alloc := r.Registry.Device().Alloc
	if k == pinned {
		alloc = r.Registry.Device().AllocHost
	}
	b, err := alloc(size)
	if err == nil {
		err = gpu.CopyIn(b, make([]byte, size))
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Registry.Register(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// again registers a rank's memory once more, until the test ends.
func (r *Rank) again(t testing.TB, m *registeredmem.Memory) *registeredmem.Memory {
	t.Helper()
	other, err := r.Registry.Register(m.Buffer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	return other
}

// target registers zeros at b and imports them at a. ok is false where the
// transport does not reach memory of that kind.
func (p *pair) target(t testing.TB, k kind, size uint64) (own, imported *registeredmem.Memory, ok bool) {
	t.Helper()
	own = p.b.memory(t, k, size)
	imported, err := p.imported(t, own)
	if errors.Is(err, mscclgo.ErrUnsupported) && k == pinned {
		return nil, nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	return own, imported, true
}

// imported imports a memory of b's at a, until the test ends.
func (p *pair) imported(t testing.TB, own *registeredmem.Memory) (*registeredmem.Memory, error) {
	t.Helper()
	data, err := own.MarshalBinary()
	if err != nil {
		return nil, err
	}
	m, err := p.a.Registry.Import(t.Context(), data)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, nil
}

// onDevice is target for device memory.
func (p *pair) onDevice(t testing.TB, size uint64) (own, imported *registeredmem.Memory) {
	t.Helper()
	own, imported, _ = p.target(t, device, size)
	return own, imported
}

// source registers memory at a with the given contents.
func source[T any](t testing.TB, p *pair, k kind, size uint64, contents []T) *registeredmem.Memory {
	t.Helper()
	m := p.a.memory(t, k, size)
	if err := gpu.CopyIn(m.Buffer(), contents); err != nil {
		t.Fatal(err)
	}
	return m
}

// read returns n values at an offset of a memory.
func read[T any](t testing.TB, m *registeredmem.Memory, offset uint64, n int) []T {
	t.Helper()
	values := make([]T, n)
	b, err := m.Buffer().Slice(offset, m.Size()-offset)
	if err == nil {
		err = gpu.CopyOut(values, b)
	}
	if err != nil {
		t.Error(err)
	}
	return values
}

// word returns the word at an offset of a memory, as a reader at system scope sees
// it.
func word(t testing.TB, m *registeredmem.Memory, offset uint64) uint64 {
	t.Helper()
	if host := m.Buffer().HostBytes(); host != nil {
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(&host[offset])))
	}
	return read[uint64](t, m, offset, 1)[0]
}

// flush waits for all that a's connection has queued, and reports whether that is
// done.
func (p *pair) flush(t testing.TB) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := p.flushUntil(ctx)
	if err != nil {
		t.Error(err)
	}
	return err == nil
}

var errGoesOn = errors.New("a flush goes on though its context has ended")

// flushUntil flushes with a context that ends, and returns the error.
func (p *pair) flushUntil(ctx context.Context) error {
	var err error
	if !soon(func() { err = p.a.Connection.Flush(ctx) }) {
		return errGoesOn
	}
	return err
}

// close closes a's connection.
func (p *pair) close(t testing.TB) {
	t.Helper()
	var err error
	if !soon(func() { err = p.a.Connection.Close() }) {
		t.Fatal("Close does not return")
	}
	if err != nil {
		t.Error(err)
	}
}

// noise returns n random bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// soon reports whether f returns in little more than the patience of tests, so that a
// context with that patience ends first.
func soon(f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-time.After(patience + patience/4):
		return false
	}
}
