package devicecode_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// images are what kernels has compiled, by architecture and source, so that each
// is compiled once for all tests.
var images sync.Map

// kernels compiles and loads a source and returns its kernels by name.
func kernels(t testing.TB, d *gpu.Device, name, source string) func(name string) *gpu.Kernel {
	t.Helper()
	arch := d.Info().Arch
	key := [2]string{arch, source}
	image, found := images.Load(key)
	if !found {
		compiled, err := devicecode.Compile(t.Context(), arch, name, []byte(source), devicecode.Options{})
		check(t, err)
		image, _ = images.LoadOrStore(key, compiled)
	}
	m, err := d.LoadModule(image.([]byte))
	check(t, err)
	t.Cleanup(func() { check(t, m.Close()) })
	return func(name string) *gpu.Kernel {
		t.Helper()
		k, err := m.Kernel(name)
		check(t, err)
		return k
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	testerr.Check(t, err)
}

func upload[T any](t testing.TB, d *gpu.Device, values []T) *gpu.Buffer {
	t.Helper()
	b, err := gpu.Upload(d, values)
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

func allocHost(t testing.TB, d *gpu.Device, size uint64) *gpu.Buffer {
	t.Helper()
	b, err := d.AllocHost(size)
	check(t, err)
	t.Cleanup(func() { check(t, b.Close()) })
	return b
}

func newStream(t testing.TB, d *gpu.Device) *gpu.Stream {
	t.Helper()
	s, err := d.NewStream()
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

// contents returns the first n values of a buffer.
func contents[T any](t testing.TB, b *gpu.Buffer, n int) []T {
	t.Helper()
	values := make([]T, n)
	check(t, gpu.CopyOut(values, b))
	return values
}

// synchronize waits for streams. Its deadline comes after the deadlines of kernels' waits, and after
// the end of a kernel that computes for seconds, on a busy machine.
func synchronize(t testing.TB, streams ...*gpu.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, s := range streams {
		check(t, s.Synchronize(ctx))
	}
}

// run launches a kernel and waits for it.
func run(t testing.TB, d *gpu.Device, k *gpu.Kernel, cfg gpu.LaunchConfig, args ...any) {
	t.Helper()
	s := newStream(t, d)
	check(t, k.Launch(s, cfg, args...))
	synchronize(t, s)
}

// status is a GroupStatus as the host uses it.
type status struct{ memory *gpu.Buffer }

func newStatus(t testing.TB, d *gpu.Device) *status {
	t.Helper()
	return &status{memory: allocHost(t, d, uint64(unsafe.Sizeof(layout.GroupStatus{})))}
}

func (s *status) get() *layout.GroupStatus {
	return (*layout.GroupStatus)(unsafe.Pointer(&s.memory.Bytes()[0]))
}

// abort ends the waits of kernels.
func (s *status) abort() { atomic.StoreUint32(&s.get().Aborted, 1) }

// failed returns what the last wait that timed out reported.
func (s *status) failed() (channel, peer int, ok bool) {
	return layout.ParseFailedWait(atomic.LoadUint64(&s.get().FirstFailed))
}

// expect checks that a wait of this watch reported that it timed out.
func (s *status) expect(t testing.TB, w layout.Watch) {
	t.Helper()
	if channel, peer, ok := s.failed(); !ok || channel != int(w.Channel) || peer != int(w.Peer) {
		t.Errorf("the report names channel %d, peer %d, %v; want %d, %d", channel, peer, ok, w.Channel, w.Peer)
	}
}
