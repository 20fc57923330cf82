package semaphore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

const patience = 30 * time.Second

// side is one of two ranks of this process that are connected.
type side struct {
	reg  *registeredmem.Registry
	buf  *gpu.Buffer // 4096 bytes
	peer *registeredmem.Memory
	conn *connection.Connection
}

func newSides(t *testing.T) [2]*side { return newMortalSides(t, nil) }

// newMortalSides returns sides whose group has failed once failed is closed.
func newMortalSides(t *testing.T, failed <-chan struct{}) [2]*side {
	t.Helper()
	var sides [2]*side
	for i := range sides {
		s := &side{}
		s.reg = testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Rank: i, Group: [16]byte{1}, Secret: [32]byte{2}, Device: testdev.Open(t, i), Timeout: patience, Failed: failed}))(t)
		t.Cleanup(func() { s.reg.Close() })
		s.buf = testerr.Must(gpu.Upload(s.reg.Device(), make([]byte, 4096)))(t)
		t.Cleanup(func() { s.buf.Close() })
		sides[i] = s
	}
	for i, s := range sides {
		other := sides[1-i]
		m := testerr.Must(other.reg.Register(other.buf))(t)
		data := testerr.Must(m.MarshalBinary())(t)
		s.peer = testerr.Must(s.reg.Import(t.Context(), data))(t)
		mine := testerr.Must(cudaipc.NewEndpoint(s.reg))(t)
		theirs := testerr.Must(cudaipc.NewEndpoint(other.reg))(t)
		data = testerr.Must(theirs.MarshalBinary())(t)
		s.conn = testerr.Must(mine.Connect(t.Context(), data))(t)
		t.Cleanup(func() { s.conn.Close() })
	}
	return sides
}

// hosts makes the two ends of a Host2Host at an offset of the buffers.
func hosts(t *testing.T, sides [2]*side, offset uint64) [2]*semaphore.Host2Host {
	t.Helper()
	var ends [2]*semaphore.Host2Host
	for i, s := range sides {
		word := testerr.Must(s.buf.Slice(offset, semaphore.Host2HostBytes))(t)
		ends[i] = testerr.Must(semaphore.NewHost2Host(s.conn, word, s.peer, offset))(t)
	}
	return ends
}

// TestHost2Host plays ping-pong with data that the signals follow.
func TestHost2Host(t *testing.T) {
	sides := newSides(t)
	ends := hosts(t, sides, 64)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error, 2)
	for i, s := range sides {
		go func() {
			src, err := s.reg.Device().AllocHost(8)
			if err != nil {
				done <- err
				return
			}
			defer src.Close()
			m, err := s.reg.Register(src)
			if err != nil {
				done <- err
				return
			}
			for round := range uint64(100) {
				if round%2 == uint64(i) {
					err = errors.Join(gpu.CopyIn(src, []uint64{round}), s.conn.Write(s.peer, 128, m, 0, 8), ends[i].Signal())
				} else if err = ends[i].Wait(ctx); err == nil {
					var got [17]uint64
					err = gpu.CopyOut(got[:], s.buf)
					if err == nil && got[16] != round {
						err = errors.New("the data did not come before the signal")
					}
				}
				if err != nil {
					break
				}
			}
			done <- errors.Join(err, s.conn.Flush(ctx))
		}()
	}
	for range sides {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestHost2HostCountsSignals(t *testing.T) {
	ends := hosts(t, newSides(t), 0)
	if ok, err := ends[0].Poll(); ok || err != nil {
		t.Fatalf("a signal that was not sent: %v, %v", ok, err)
	}
	const signals = 20
	var got atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan struct{})
	for range 4 {
		go func() {
			for range signals / 4 {
				testerr.Report(t, ends[0].Wait(ctx))
				got.Add(1)
			}
			done <- struct{}{}
		}()
	}
	for range signals + 1 {
		testerr.Check(t, ends[1].Signal())
	}
	for range 4 {
		<-done
	}
	for ok := false; !ok; {
		var err error
		if ok, err = ends[0].Poll(); err != nil || ctx.Err() != nil {
			t.Fatalf("the last of %d signals did not come: %v", signals+1, err)
		}
	}
	if ok, err := ends[0].Poll(); ok || err != nil || got.Load() != signals {
		t.Fatalf("%d signals ended waits, and there are more: %v, %v", got.Load(), ok, err)
	}
}

func TestHost2HostWaitEnds(t *testing.T) {
	ends := hosts(t, newSides(t), 0)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := ends[0].Wait(short); !errors.Is(err, mscclgo.ErrTimeout) {
		t.Errorf("a wait past its deadline returned %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ends[0].Wait(ended); !errors.Is(err, mscclgo.ErrAborted) {
		t.Errorf("a wait with a cancelled context returned %v", err)
	}
	testerr.Check(t, ends[1].Signal())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := ends[0].Wait(ctx); err != nil {
		t.Errorf("the waits that ended consumed the signal: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestHost2HostGroupFails has the group fail with one signal there. That ends a Wait, and no other comes.
func TestHost2HostGroupFails(t *testing.T) {
	failed := make(chan struct{})
	sides := newMortalSides(t, failed)
	ends := hosts(t, sides, 64)
	testerr.Check(t, errors.Join(ends[0].Signal(), sides[0].conn.Flush(t.Context())))
	waits := make(chan error, 2)
	for range 2 {
		go func() { waits <- ends[1].Wait(t.Context()) }()
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
	if some, err := ends[1].Poll(); some || err != nil {
		t.Errorf("a poll of a group that works: %v, %v", some, err)
	}
	close(failed)
	testerr.Expect(t, <-waits, mscclgo.ErrAborted, "semaphore: wait (rank 1, peer 0)", "the group has failed")
	_, err := ends[1].Poll()
	testerr.Expect(t, err, mscclgo.ErrAborted, "semaphore: poll (rank 1, peer 0)", "the group has failed")
}

func TestWrongHostEnds(t *testing.T) {
	sides := newSides(t)
	s := sides[0]
	own := testerr.Must(s.peer.Registry().Register(s.buf))(t)
	watch := newWatch(t, s.reg.Device())
	word := func(offset, n uint64) *gpu.Buffer {
		return testerr.Must(s.buf.Slice(offset, n))(t)
	}
	for _, c := range []struct {
		word   *gpu.Buffer
		offset uint64
	}{{word(0, 4), 0}, {word(4, 8), 0}, {word(0, 8), 4}, {word(0, 8), 4096}, {word(0, 8), ^uint64(7)}} {
		if _, err := semaphore.NewHost2Host(s.conn, c.word, s.peer, c.offset); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("a Host2Host of %d bytes at %#x, the peer's at %d: %v", c.word.Size(), uint64(c.word.Ptr()), c.offset, err)
		}
	}
	for name, err := range map[string]error{
		"no connection": second(semaphore.NewHost2Host(nil, word(0, 8), s.peer, 0)),
		"no word":       second(semaphore.NewHost2Host(s.conn, nil, s.peer, 0)),
		"no peer":       second(semaphore.NewHost2Host(s.conn, word(0, 8), nil, 0)),
		"own memory":    second(semaphore.NewHost2Host(s.conn, word(0, 8), own, 0)),
		"foreign":       second(semaphore.NewHost2Host(s.conn, word(0, 8), sides[1].peer, 0)),
		"own, kernels":  second(semaphore.NewHost2Device(s.conn, word(0, 64), own, 0, watch)),
		"no words":      second(semaphore.NewHost2Device(s.conn, nil, s.peer, 0, watch)),
		"no buffers":    second(semaphore.NewDevice2Device(nil, nil, watch)),
	} {
		if !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		words  *gpu.Buffer
		offset uint64
	}{{word(0, 32), 0}, {word(32, 64), 0}, {word(0, 64), 32}, {word(0, 64), 4096}} {
		if _, err := semaphore.NewHost2Device(s.conn, c.words, s.peer, c.offset, watch); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("a Host2Device of %d bytes at %#x, the peer's at %d: %v", c.words.Size(), uint64(c.words.Ptr()), c.offset, err)
		}
	}
}
