package ethernet

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/mscclgo/mscclgo/connection/internal/spin"
	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// input reads from a socket.
type input struct {
	conn net.Conn
	raw  syscall.RawConn // nil: conn is encrypted
	once func(fd uintptr) bool
	spin *spin.Spinner

	// The read that is under way.
	p    []byte
	into *target.Memory
	n    int
	err  error
}

var errWithdrawn = errors.New("the memory was withdrawn")

func (t *Transport) newInput(nc net.Conn) *input {
	in := &input{conn: nc, spin: &t.rank.Spin}
	if tcp, ok := nc.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			in.raw, in.once = raw, in.try
		}
	}
	return in
}

// straight reports whether read takes the memory that it reads into.
func (in *input) straight() bool { return in.raw != nil }

// read reads what has arrived, at least a byte. into is the registered memory that p
// is part of, or nil. It is held while bytes are copied, not while they are awaited.
func (in *input) read(p []byte, into *target.Memory) (int, error) {
	if in.raw == nil {
		return in.conn.Read(p)
	}
	in.p, in.into, in.n, in.err = p, into, 0, nil
	err := in.raw.Read(in.once)
	in.p, in.into = nil, nil
	switch {
	case in.err != nil:
		return 0, in.err
	case err != nil:
		return 0, err
	case in.n == 0:
		return 0, io.EOF
	}
	return in.n, nil
}

// try reads, and reports false if nothing has arrived.
func (in *input) try(fd uintptr) bool {
	return in.attempt(fd) || in.spin.Until(func() bool { return in.attempt(fd) })
}

func (in *input) attempt(fd uintptr) bool {
	if in.into != nil {
		if !in.into.Hold() {
			in.err = errWithdrawn
			return true
		}
		defer in.into.Release()
	}
	for {
		n, err := syscall.Read(int(fd), in.p)
		switch err {
		case nil:
			in.n = n
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			in.err = err
			return true
		}
	}
}
