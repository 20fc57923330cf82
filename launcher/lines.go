package launcher

import (
	"bytes"
	"io"
	"sync"
)

// maxLine bounds a line with its prefix, and so what a stream buffers. A longer
// line is broken: waiting for its end would take unbounded memory, and writing it
// in pieces would mix it with other ranks' lines.
const maxLine = 64 << 10

// lines writes one stream of one rank in whole lines.
type lines struct {
	mu     *sync.Mutex // one for all streams of a run: they may share a writer
	out    io.Writer
	prefix string

	buf   []byte // whole lines, then the one that has begun
	begun int    // where in buf that one begins
}

// Write takes the next bytes of the stream and writes the lines that they
// complete, all at once.
func (l *lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if len(l.buf) == l.begun {
			l.buf = append(l.buf, l.prefix...)
		}
		room := maxLine - (len(l.buf) - l.begun)
		end := bytes.IndexByte(rest, '\n')
		switch {
		case end >= 0 && end <= room:
			l.end(rest[:end])
			rest = rest[end+1:]
		case len(rest) > room:
			l.end(rest[:room])
			rest = rest[room:]
		default:
			l.buf = append(l.buf, rest...)
			rest = nil
		}
	}
	return len(p), l.pass()
}

// Close writes the last line if the stream ended within it.
func (l *lines) Close() error {
	if len(l.buf) > l.begun {
		l.end(nil)
	}
	return l.pass()
}

// end appends the last bytes of the line that has begun.
func (l *lines) end(last []byte) {
	l.buf = append(l.buf, last...)
	l.buf = append(l.buf, '\n')
	l.begun = len(l.buf)
}

// pass writes the whole lines and keeps the one that has begun.
func (l *lines) pass() error {
	if l.begun == 0 {
		return nil
	}
	l.mu.Lock()
	_, err := l.out.Write(l.buf[:l.begun])
	l.mu.Unlock()
	l.buf = l.buf[:copy(l.buf, l.buf[l.begun:])]
	l.begun = 0
	return err
}
