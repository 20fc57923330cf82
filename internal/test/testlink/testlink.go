// Package testlink has what tests of several transports share: memory of ranks that
// map nothing of each other's, and what happens around a connection.
package testlink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Timeout is long enough for what comes soon on a machine that does nothing else.
const Timeout = 20 * time.Second

// Log keeps what a rank logs.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Marshal returns the bytes of an endpoint or a memory.
func Marshal(t testing.TB, m interface{ MarshalBinary() ([]byte, error) }) []byte {
	t.Helper()
	data, err := m.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Memory registers size bytes of zeros, which alloc allocates.
func Memory(t testing.TB, reg *registeredmem.Registry, alloc func(bytes uint64) (*gpu.Buffer, error), size uint64) *registeredmem.Memory {
	t.Helper()
	b, err := alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := gpu.CopyIn(b, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	m, err := reg.Register(b)
	if err != nil {
		t.Fatal(err)
	}
	// Before the buffer is closed: writes may still arrive.
	t.Cleanup(func() { m.Close() })
	return m
}

// Import returns another rank's memory as the rank of the registry reaches it.
func Import(t testing.TB, to *registeredmem.Registry, m *registeredmem.Memory) *registeredmem.Memory {
	t.Helper()
	got, err := to.Import(t.Context(), Marshal(t, m))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Get returns what is in a memory of this rank's.
func Get(t testing.TB, m *registeredmem.Memory) []byte {
	t.Helper()
	got := make([]byte, m.Size())
	if err := gpu.CopyOut(got, m.Buffer()); err != nil {
		t.Fatal(err)
	}
	return got
}

// Set stores data at the begin of a memory of this rank's.
func Set(t testing.TB, m *registeredmem.Memory, data []byte) {
	t.Helper()
	if err := gpu.CopyIn(m.Buffer(), data); err != nil {
		t.Fatal(err)
	}
}

// Noise returns n random bytes, the same for each n.
func Noise(n uint64) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// Eventually polls until what holds, or fails the test.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(Timeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
	}
}

// HoldStream keeps a device's stream from going on until release is called, or the test ends.
func HoldStream(t testing.TB, s *gpu.Stream) (release func()) {
	t.Helper()
	gate, err := s.Device().AllocHost(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	if err := s.WaitValue64(gate, 0, 1, gpu.GreaterOrEqual); err != nil {
		t.Fatal(err)
	}
	release = func() {
		if err := gpu.CopyIn(gate, []uint64{1}); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

// OpenFiles counts this process's descriptors, once they have settled.
func OpenFiles(t testing.TB) int {
	t.Helper()
	n, same := -1, 0
	for end := time.Now().Add(2 * time.Second); same < 5 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == n {
			same++
		} else {
			n, same = len(all), 0
		}
	}
	return n
}

// EndWhileConnecting has contexts end at all times while connect runs, and closes what it returned.
// connect may fail with ErrTimeout only.
func EndWhileConnecting[C io.Closer](t testing.TB, connect func(ctx context.Context) (C, error)) {
	t.Helper()
	within := func(d time.Duration) (took time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		begun := time.Now()
		c, err := connect(ctx)
		took = time.Since(begun)
		if err == nil {
			err = c.Close()
		} else if errors.Is(err, mscclgo.ErrTimeout) {
			err = nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return took
	}
	whole := within(time.Minute)
	for i := range 400 {
		within(whole * time.Duration(i) / 200)
	}
}
