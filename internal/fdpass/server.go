package fdpass

import (
	"container/list"
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
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
)

const (
	// handshakeTimeout bounds a caller's part of the exchange, which a member
	// of the group does in well under a millisecond.
	handshakeTimeout = 5 * time.Second
	// maxHalfOpen is how many callers may be in their handshake at a time. One
	// more closes the oldest, the silent stranger who has waited longest.
	maxHalfOpen = 256

	namePrefix = "mscclgo-"
	nameRandom = 16 // bytes
)

// Answer is what a [Handler] gives and the caller gets. Exactly one of File and
// Value may be set.
type Answer struct {
	Body []byte   // at most MaxBody bytes
	File *os.File // the server and the caller's Call close it
	// Value reaches the caller as it is. It is for callers of the same process
	// only.
	Value any
}

// Handler answers the request of a member of the group. sameProcess says that
// the caller is this very process. It runs on a goroutine of its own.
type Handler func(request []byte, sameProcess bool) Answer

// Server answers the members of a group until it is closed.
type Server struct {
	key    Key
	name   string
	handle Handler
	log    *slog.Logger
	ln     *net.UnixListener
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	halfOpen list.List // of *net.UnixConn, oldest first
	nextLog  time.Time
	unlogged int
}

// Listen starts a server on a socket of a new random name.
//
// Errors: ErrSystem when there can be no socket.
func Listen(key Key, log *slog.Logger, handle Handler) (*Server, error) {
	random := make([]byte, nameRandom)
	rand.Read(random)
	name := namePrefix + hex.EncodeToString(random)
	ln, err := net.ListenUnix("unixpacket", address(name))
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "listen on a Unix socket", "%w", err)
	}
	s := &Server{key: key, name: name, handle: handle, log: log, ln: ln}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// Name gives the socket's name for [Call].
func (s *Server) Name() string { return s.name }

// Close ends the server and the handshakes under way, and returns when no
// handler runs any more. It is safe to call twice.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		s.ln.Close()
		for e := s.halfOpen.Front(); e != nil; e = e.Next() {
			e.Value.(*net.UnixConn).Close()
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Server) accept() {
	defer s.wg.Done()
	for {
		conn, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, or the caller has gone already: neither ends
			// the server.
			s.log.Warn("fdpass: accepting a connection failed", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.start(conn)
	}
}

func (s *Server) start(conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	if s.halfOpen.Len() >= maxHalfOpen {
		s.halfOpen.Remove(s.halfOpen.Front()).(*net.UnixConn).Close()
	}
	slot := s.halfOpen.PushBack(conn)
	s.wg.Go(func() {
		defer conn.Close()
		talk := conversation{key: s.key, name: s.name}
		body, sameProcess, err := s.shake(conn, &talk)
		s.mu.Lock()
		s.halfOpen.Remove(slot)
		s.mu.Unlock()
		if err == nil {
			err = s.answer(conn, &talk, s.handle(body, sameProcess), sameProcess)
		}
		if err != nil {
			s.refused(err)
		}
	})
}

// shake has the caller prove that it is of the group and gives its request.
func (s *Server) shake(conn *net.UnixConn, talk *conversation) (body []byte, sameProcess bool, err error) {
	if sameProcess, err = sameUser(conn); err != nil {
		return nil, false, err
	}
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if _, err := conn.Write(talk.greet()); err != nil {
		return nil, false, fmt.Errorf("sending the greeting: %w", err)
	}
	packet := make([]byte, maxRequest+1) // one more tells what is too long
	n, err := conn.Read(packet)          // without room for files, which the kernel then drops
	if err != nil {
		return nil, false, fmt.Errorf("awaiting the request: %w", err)
	}
	body, err = talk.asked(packet[:n])
	return body, sameProcess, err
}

// answer sends a to the caller.
func (s *Server) answer(conn *net.UnixConn, talk *conversation, a Answer, sameProcess bool) error {
	out := answered{body: a.Body}
	var rights []byte
	if a.File != nil {
		defer a.File.Close()
		out.files = 1
		rights = syscall.UnixRights(int(a.File.Fd()))
	}
	if a.Value != nil {
		// A handle's number means something in this process alone, and looking
		// up a wrong one panics. So it goes only where the kernel says that
		// this process listens; there Call believes it only under a proof and
		// from its own process. It stays good until Call, which looks it up
		// once, has closed its end: Call does so whenever its context ends, so
		// the wait below needs no deadline of its own.
		if !sameProcess {
			return errors.New("a Go value was to leave the process")
		}
		handle := cgo.NewHandle(a.Value)
		defer handle.Delete()
		out.value = uint64(handle)
	}
	if _, _, err := conn.WriteMsgUnix(talk.encode(out), rights, nil); err != nil {
		return fmt.Errorf("sending the answer: %w", err)
	}
	if a.Value != nil {
		conn.SetReadDeadline(time.Time{})
		if _, err := conn.Read(make([]byte, 1)); err != nil && err != io.EOF {
			return fmt.Errorf("awaiting that the answer is taken: %w", err)
		}
	}
	return nil
}

// refused logs a caller that got no answer, at most one a second: a stranger
// must not fill the log either.
func (s *Server) refused(err error) {
	s.mu.Lock()
	now := time.Now()
	if s.closed || now.Before(s.nextLog) {
		s.unlogged++
		s.mu.Unlock()
		return
	}
	unlogged := s.unlogged
	s.unlogged = 0
	s.nextLog = now.Add(time.Second)
	s.mu.Unlock()
	s.log.Warn("fdpass: refused a caller", "socket", s.name, "err", err, "unlogged", unlogged)
}

// address gives the abstract socket of a name.
func address(name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: "@" + name}
}

// ValidName says whether name has the form of a server's name.
func ValidName(name string) bool {
	random, ok := strings.CutPrefix(name, namePrefix)
	if !ok || len(random) != hex.EncodedLen(nameRandom) {
		return false
	}
	_, err := hex.DecodeString(random)
	return err == nil
}
