package communicator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// TestNewStreamReformed: a stream of NewStream tells of the group in which its rank is, not of the
// one before, whether Reform is given the stream or not.
func TestNewStreamReformed(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Hour})
	streams := make([]*gpu.Stream, 2)
	each(t, 2, func(rank int) (err error) {
		streams[rank], err = comms[rank].NewStream()
		return err
	})
	reform := func(named bool) {
		t.Helper()
		boots := ranks(t, 2)
		each(t, 2, func(rank int) (err error) {
			var given []*gpu.Stream
			if named {
				given = streams[rank : rank+1]
			}
			comms[rank], err = comms[rank].Reform(t.Context(), boots[rank], given...)
			return err
		})
		if t.Failed() {
			t.FailNow()
		}
		each(t, 2, func(rank int) error {
			return errors.Join(streams[rank].Synchronize(t.Context()), comms[rank].Synchronize(t.Context(), streams[rank]))
		})
	}
	fail := func(why string) {
		t.Helper()
		comms[0].Abort(errors.New(why))
		<-comms[1].Done()
		for rank, s := range streams {
			failing(t, rank, s.Synchronize(t.Context()), mscclgo.ErrAborted, why)
		}
	}
	fail("the disk is full")
	reform(true)
	fail("the disk is full again")
	reform(false)
	reform(true) // of a group that works
	fail("and again")
	each(t, 2, func(rank int) error { return errors.Join(comms[rank].Close(), streams[rank].Close()) })
}

// TestNewStreamClosed has a kernel wait while its communicator is closed, which ends the wait: the
// stream of NewStream tells, as the communicator does.
func TestNewStreamClosed(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Hour})
	all := workers(t, comms)
	for rank, err := range outcomes(t, 2, func(rank int) error {
		w := all[rank]
		buffer, err := w.comm.Device().Alloc(1 << 12)
		if err != nil {
			return err
		}
		channels, err := w.comm.MemoryChannels(t.Context(), buffer, communicator.MemoryChannelOptions{})
		if err != nil {
			return err
		}
		s, err := w.comm.NewStream()
		if err != nil {
			return err
		}
		own := w.stream
		w.stream = s
		err = w.launch("await", 1, 1, channels.HandleOf(0, 1-rank))
		w.stream = own
		if err = errors.Join(err, w.comm.Close()); err != nil {
			return err
		}
		told := s.Synchronize(t.Context())
		if !errors.Is(told, mscclgo.ErrAborted) {
			t.Errorf("rank %d: the stream says %v after the communicator was closed", rank, told)
		}
		return errors.Join(s.Close(), channels.Close(), buffer.Close(), w.comm.Synchronize(t.Context(), own))
	}) {
		failing(t, rank, err, mscclgo.ErrAborted)
	}
}
