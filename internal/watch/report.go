package watch

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// The launcher of the processes has a socket of datagrams, whose name they inherit in an environment variable. What arrives
// is printed, and nothing else depends on it.

// Env is the variable with the socket's name.
const Env = "MSCCLGO_LAUNCHER"

const (
	prefix    = "@mscclgo-launcher-" // @: in the abstract namespace
	groupSize = 16
	maxText   = 4 << 10
	maxBytes  = groupSize + 8 + maxText // of a datagram
)

// Forget, in the place of a rank, takes back the reports of the group before: it has met again.
const Forget = 1<<32 - 1

// A Report is why a group failed.
type Report struct {
	Group [groupSize]byte // the group's number
	Rank  uint32          // the rank that made it fail
	Text  string          `wire:"4096"` // why; what is beyond 4 KiB is cut off
}

// A Listener receives the reports of one group.
type Listener struct {
	name  string
	group [groupSize]byte
	file  *os.File
	conn  syscall.RawConn
	ended chan struct{} // closed when nobody reads any more

	mu    sync.Mutex
	first *Report
}

// Listen opens a socket whose name nobody can guess, for the reports of a group.
//
// It reads what arrives all the time: the kernel keeps as few as ten reports that nobody has
// read (net.unix.max_dgram_qlen), and groups that a program splits off send some too.
func Listen(group [groupSize]byte) (*Listener, error) {
	var random [16]byte
	rand.Read(random[:]) // never fails
	l := &Listener{name: prefix + hex.EncodeToString(random[:]), group: group, ended: make(chan struct{})}
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: l.name}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	l.file = os.NewFile(uintptr(fd), l.name)
	if l.conn, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, err
	}
	go func() {
		defer close(l.ended)
		l.conn.Read(func(fd uintptr) bool { l.drain(int(fd)); return false }) // until it is closed
	}()
	return l, nil
}

// socket opens a socket of datagrams on which no call waits.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// Name is the value of Env for the processes.
func (l *Listener) Name() string { return l.name }

// First returns the first report of the group that has arrived since it met last, and reports whether there is
// one. It does not wait.
func (l *Listener) First() (Report, bool) {
	l.conn.Control(func(fd uintptr) { l.drain(int(fd)) }) // what has just arrived
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		return Report{}, false
	}
	return *l.first, true
}

// drain takes all reports that have arrived, and keeps the first of the group since it met last.
func (l *Listener) drain(fd int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var buf [maxBytes]byte
	for {
		n, _, err := unix.Recvfrom(fd, buf[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		r, err := reports.Unmarshal(buf[:n])
		r.Text = printable(r.Text)
		switch {
		case err != nil || r.Group != l.group:
		case r.Rank == Forget:
			l.first = nil
		case l.first == nil:
			l.first = &r
		}
	}
}

// Close closes the socket.
func (l *Listener) Close() error {
	err := l.file.Close()
	<-l.ended
	return err
}

// Send sends a report to the launcher that started this process. It does nothing if
// none did, or if it has ended or has not read many reports, and never waits.
func Send(r Report) {
	name := os.Getenv(Env)
	if !strings.HasPrefix(name, prefix) {
		return
	}
	fd, err := socket()
	if err != nil {
		return
	}
	defer unix.Close(fd)
	unix.Sendto(fd, reports.Marshal(&r), 0, &unix.SockaddrUnix{Name: name})
}

var reports = wire.For[Report]()

// printable returns text without what could control a terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}
