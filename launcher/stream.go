package launcher

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// linger is how long a stream may stay silent after its rank has ended before it
// is taken to have ended: a process that escaped the rank's process group may keep
// it open forever.
const linger = 100 * time.Millisecond

// lastCall is how long such a process may go on writing: the launcher ends with the
// ranks.
const lastCall = time.Second

// maxPipe is the most that a pipe holds, unless root enlarges it.
const maxPipe = 1 << 20

// stream carries one output of a rank, through a pipe, to its lines.
type stream struct {
	read, write *os.File
	to          *lines
	rankEnded   atomic.Bool
	done        chan error
}

// newStream opens the pipe. Its write end is for the rank.
func newStream(to *lines) (*stream, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &stream{read: r, write: w, to: to, done: make(chan error, 1)}, nil
}

// start is called once the rank holds the write end.
func (s *stream) start() {
	s.write.Close()
	go func() {
		err := s.copy()
		s.read.Close() // if writing failed, the rank's writes now fail too
		s.done <- err
	}()
}

// discard is called instead of start if there is no rank.
func (s *stream) discard() {
	s.write.Close()
	s.read.Close()
}

// end is called when the rank has ended.
func (s *stream) end() {
	s.rankEnded.Store(true)
	s.wakeLater()
}

// drain returns when everything the rank wrote has been written to the output,
// with the error of writing it. It is called once, after end.
func (s *stream) drain() error { return <-s.done }

// wakeLater makes a read fail that finds nothing for the linger time.
func (s *stream) wakeLater() {
	s.read.SetReadDeadline(time.Now().Add(linger))
}

// copy writes bytes to the output until the pipe ends, or only others than the rank can
// still write to it. A deadline counts only if
// nothing arrived before it: writing may have taken longer than that.
func (s *stream) copy() error {
	buf := make([]byte, 16<<10)
	late := false
	after := 0        // bytes read since the rank ended
	var own time.Time // when all that the rank itself wrote had been read
	for {
		ended := s.rankEnded.Load()
		n, err := s.read.Read(buf)
		if _, werr := s.to.Write(buf[:n]); werr != nil {
			return werr
		}
		switch {
		case err == nil:
			late = false
			if ended {
				after += n
			}
			if ended && own.IsZero() && (n < len(buf) || after > maxPipe) {
				own = time.Now() // the rest of the pipe, or more than it can hold
			}
			if !own.IsZero() && time.Since(own) > lastCall {
				return s.to.Close()
			}
			if s.rankEnded.Load() {
				s.wakeLater()
			}
		case errors.Is(err, os.ErrDeadlineExceeded) && !late:
			late = true
			s.wakeLater()
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF):
			return s.to.Close()
		default:
			return errors.Join(err, s.to.Close())
		}
	}
}
