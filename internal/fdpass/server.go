package fdpass

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/cgo"
	"strings"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

const (
	namePrefix = "mscclgo-"
	nameRandom = 16 // bytes
)

// Answer is what a [Handler] returns and the caller receives. At most one of File
// and Value may be set.
type Answer struct {
	Body []byte   // at most MaxBody bytes
	File *os.File // the server and the caller's Call close it
	// Value reaches the caller as it is. It is for callers of the same process
	// only.
	Value any
	// Stay, if not nil, gets the connection on which the answer went, which is the
	// handler's from then on, or nil if the caller did not get the answer. The caller's
	// end is as for [Connect].
	Stay func(*net.UnixConn)
}

// Handler answers the request of a member of the group. sameProcess reports
// whether the caller is this very process. It runs on a goroutine of its own.
type Handler func(request []byte, sameProcess bool) Answer

// Server answers the members of a group until it is closed.
type Server struct {
	name     string
	patience time.Duration
	handle   Handler
	member   *handshake.Member
	acceptor *handshake.Acceptor
}

// Listen starts a server on a socket of a new random name. patience is for how long a caller
// may leave the server waiting. It should be as long as the caller itself is given, since on a
// busy machine either may get no CPU for seconds. It is [handshake.DefaultPatience] at least.
//
// Errors: ErrSystem when there can be no socket.
func Listen(key Key, patience time.Duration, log *slog.Logger, handle Handler) (*Server, error) {
	random := make([]byte, nameRandom)
	rand.Read(random)
	name := namePrefix + hex.EncodeToString(random)
	ln, err := net.ListenUnix("unixpacket", address(name))
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "listen on a Unix socket", "%w", err)
	}
	return serveOn(ln, name, key, max(patience, handshake.DefaultPatience), log, handle), nil
}

// serveOn starts a server on a socket.
func serveOn(ln net.Listener, name string, key Key, patience time.Duration, log *slog.Logger, handle Handler) *Server {
	s := &Server{name: name, patience: patience, handle: handle, member: key.member(name, patience)}
	s.acceptor = handshake.NewAcceptor("fdpass", log, s.shake, ln)
	return s
}

// Name returns the socket's name for [Call].
func (s *Server) Name() string { return s.name }

// WhenShort has tell called when there has been no descriptor, or no memory, for a caller
// that waits, for the time after. It may not close the server.
func (s *Server) WhenShort(after time.Duration, tell func(error)) { s.acceptor.WhenShort(after, tell) }

// Close ends the server and the handshakes under way, and returns when no
// handler runs any more. It is safe to call twice.
func (s *Server) Close() error {
	s.acceptor.Stop()
	s.acceptor.Wait()
	return nil
}

// shake has the caller prove that it is of the group, and takes its request.
func (s *Server) shake(raw net.Conn, _ func() error) (serve func() error, err error) {
	conn := raw.(*net.UnixConn)
	sameProcess, err := sameUser(conn)
	if err != nil {
		return nil, err
	}
	if _, err := s.member.Server(conn, func(net.Conn, []byte) error { return nil }); err != nil {
		return nil, err
	}
	conn.SetReadDeadline(time.Now().Add(s.patience))
	packet := make([]byte, maxRequest+1) // one more shows what is too long
	n, err := conn.Read(packet)          // without room for files, which the kernel then drops
	if err != nil {
		return nil, fmt.Errorf("waiting for the request: %w", err)
	}
	request, err := decodeRequest(packet[:n])
	if err != nil {
		return nil, err
	}
	return func() error {
		a := s.handle(request, sameProcess)
		conn.SetWriteDeadline(time.Now().Add(s.patience)) // the handler's time is its own
		err := s.answer(conn, a, sameProcess)
		switch {
		case a.Stay == nil:
			conn.Close()
		case err != nil:
			a.Stay(nil)
		default:
			conn.SetDeadline(time.Time{})
			a.Stay(conn)
		}
		return err
	}, nil
}

// answer sends a to the caller.
func (s *Server) answer(conn *net.UnixConn, a Answer, sameProcess bool) error {
	out := content{body: a.Body}
	var rights []byte
	if a.File != nil {
		defer a.File.Close()
		out.files = 1
		rights = syscall.UnixRights(int(a.File.Fd()))
	}
	if a.Value != nil {
		// A handle's number means something in this process alone, and looking
		// up a wrong one panics. So it is sent only if the kernel reports that
		// the caller is this process, and Call believes only its own process, which
		// has proved itself. It stays valid until Call, which looks it up once,
		// has closed its end: Call does so whenever its context ends, so the
		// wait below needs no deadline of its own.
		if !sameProcess {
			return errors.New("a Go value was to leave the process")
		}
		handle := cgo.NewHandle(a.Value)
		defer handle.Delete()
		out.value = uint64(handle)
	}
	if _, _, err := conn.WriteMsgUnix(out.encode(), rights, nil); err != nil {
		return fmt.Errorf("sending the answer: %w", err)
	}
	if a.Value != nil {
		conn.SetReadDeadline(time.Time{})
		if _, err := conn.Read(make([]byte, 1)); err != nil && err != io.EOF {
			return fmt.Errorf("waiting until the answer is taken: %w", err)
		}
	}
	return nil
}

// address returns the abstract socket of a name.
func address(name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: "@" + name}
}

// ValidName reports whether name has the form of a server's name.
func ValidName(name string) bool {
	random, ok := strings.CutPrefix(name, namePrefix)
	if !ok || len(random) != hex.EncodedLen(nameRandom) {
		return false
	}
	_, err := hex.DecodeString(random)
	return err == nil
}
