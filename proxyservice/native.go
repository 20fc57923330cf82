package proxyservice

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/native"
)

// failed gives the error of an operation that failed in C for a trigger: the same
// as serve's.
func (s *server) failed(t fifo.Trigger, f native.Failure) error {
	r, err := decode(t)
	if err != nil {
		return err
	}
	what := map[native.Op]string{native.Begin: "serve", native.Write: "put", native.Store: "signal", native.Mark: "flush"}[f.Op]
	p, err := s.port(r)
	if err != nil {
		return err
	}
	return p.wrap(r, what, native.PathError(p.line.conn, f))
}

// flushFailed gives the error of a flush on a line that failed in C: the same as
// goOn's.
func (s *server) flushFailed(line int, f native.Failure) error {
	for _, p := range *s.ports.Load() {
		if p.line.index != line {
			continue
		}
		if f.Closed() {
			return mscclgo.Errorf(mscclgo.ErrInvalid, "proxyservice: flush", "the connection was closed before it was done").At(mscclgo.NoRank, p.semaphore.Peer())
		}
		return native.PathError(p.line.conn, f)
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, "proxyservice: flush", "no channel has connection %d", line)
}
