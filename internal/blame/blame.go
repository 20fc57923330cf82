// Package blame finds out which rank made a group fail, and tells the launcher of its
// processes.
// The launcher has a socket of datagrams, whose name its processes inherit in an
// environment variable. What arrives is printed, and nothing else depends on it.
package blame

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// Env is the variable with the socket's name.
const Env = "MSCCLGO_LAUNCHER"

const (
	prefix    = "@mscclgo-launcher-" // @: in the abstract namespace
	groupSize = 16
	maxText   = 4 << 10
	maxBytes  = groupSize + 8 + maxText // of a datagram
)

// A Report is why a group failed.
type Report struct {
	Group [groupSize]byte // the group's number
	Rank  uint32          // the rank that made it fail
	Text  string          // why; what is beyond 4 KiB is cut off
}

// A Listener receives reports.
type Listener struct {
	name string
	fd   int
}

// Listen opens a socket whose name nobody can guess.
func Listen() (*Listener, error) {
	var random [16]byte
	rand.Read(random[:]) // never fails
	name := prefix + hex.EncodeToString(random[:])
	fd, err := socket()
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &Listener{name, fd}, nil
}

// socket opens a socket of datagrams on which no call waits.
func socket() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	return fd, os.NewSyscallError("socket", err)
}

// Name is the value of Env for the processes.
func (l *Listener) Name() string { return l.name }

// First takes the first report of a group that has arrived, and reports whether there
// is one. It does not wait.
func (l *Listener) First(group [groupSize]byte) (Report, bool) {
	var buf [maxBytes]byte
	for {
		n, _, err := unix.Recvfrom(l.fd, buf[:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return Report{}, false
		}
		if r, err := decode(buf[:n]); err == nil && r.Group == group {
			return r, true
		}
	}
}

// Close closes the socket.
func (l *Listener) Close() error { return unix.Close(l.fd) }

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
	unix.Sendto(fd, encode(r), 0, &unix.SockaddrUnix{Name: name})
}

func encode(r Report) []byte {
	w := wire.NewWriter(maxBytes)
	w.Raw(r.Group[:])
	w.U32(r.Rank)
	w.String(r.Text[:min(len(r.Text), maxText)])
	return w.Bytes()
}

func decode(b []byte) (Report, error) {
	r := wire.NewReader(b)
	var report Report
	copy(report.Group[:], r.Raw(groupSize))
	report.Rank, report.Text = r.U32(), printable(r.String(maxText))
	return report, r.End()
}

// printable returns text without what could control a terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
}
