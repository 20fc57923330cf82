package watch

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func listen(t *testing.T, group [groupSize]byte) *Listener {
	t.Helper()
	l := testerr.Must(Listen(group))(t)
	t.Cleanup(func() { l.Close() })
	t.Setenv(Env, l.Name())
	return l
}

func TestReports(t *testing.T) {
	mine, other := [16]byte{1}, [16]byte{2}
	l := listen(t, mine)
	if r, ok := l.First(); ok {
		t.Fatalf("First = %v before any report", r)
	}
	Send(Report{other, 1, "of another group"})
	Send(Report{mine, 3, "lost\x1b[2J its \xff way\n"})
	Send(Report{mine, 4, "later"})
	want := Report{mine, 3, "lost?[2J its ? way\n"}
	if r, ok := l.First(); !ok || r != want {
		t.Errorf("First = %+v, %v, want %+v", r, ok, want)
	}
}

// TestForget has a group meet again, whose first failure is not to blame for its second.
func TestForget(t *testing.T) {
	mine := [16]byte{1}
	l := listen(t, mine)
	Send(Report{mine, 3, "before"})
	Send(Report{[16]byte{2}, Forget, "of another group"})
	if r, ok := l.First(); !ok || r.Rank != 3 {
		t.Errorf("First = %+v, %v, want the report of rank 3", r, ok)
	}
	Send(Report{Group: mine, Rank: Forget})
	if r, ok := l.First(); ok {
		t.Errorf("First = %+v after the group has met again", r)
	}
	want := Report{mine, 4, "after"}
	Send(want)
	if r, ok := l.First(); !ok || r != want {
		t.Errorf("First = %+v, %v, want %+v", r, ok, want)
	}
}

// TestManyReports checks that reports of other groups, such as groups of Split, keep out no report
// of the group: unread, they fill the socket's queue.
func TestManyReports(t *testing.T) {
	mine := [16]byte{1}
	l := listen(t, mine)
	fd := testerr.Must(socket())(t)
	defer unix.Close(fd)
	testerr.Check(t, unix.SetNonblock(fd, false))
	testerr.Check(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10}))
	for i := range 2000 { // more than the queue holds; each waits for room, where Send does not
		if err := unix.Sendto(fd, reports.Marshal(&Report{Group: [16]byte{2}}), 0, &unix.SockaddrUnix{Name: l.Name()}); err != nil {
			t.Fatalf("nobody reads what is sent: %v after %d reports", err, i)
		}
	}
	want := Report{mine, 3, "lost its way"}
	testerr.Check(t, unix.Sendto(fd, reports.Marshal(&want), 0, &unix.SockaddrUnix{Name: l.Name()}))
	if r, ok := l.First(); !ok || r != want {
		t.Errorf("First = %+v, %v, want %+v", r, ok, want)
	}
}

func TestLongText(t *testing.T) {
	l := listen(t, [16]byte{})
	Send(Report{Text: strings.Repeat("x", 1<<20)})
	if r, ok := l.First(); !ok || len(r.Text) != maxText {
		t.Errorf("a report with %d bytes of text arrived: %v", len(r.Text), ok)
	}
}

// TestNobodyListens checks that Send returns wherever the report cannot go.
func TestNobodyListens(t *testing.T) {
	l := listen(t, [16]byte{})
	for range 10_000 { // more than the queue holds
		Send(Report{})
	}
	l.Close()
	Send(Report{})
	for _, name := range []string{"", "@elsewhere", "/tmp/file"} {
		t.Setenv(Env, name)
		Send(Report{})
	}
}

func TestMalformedReports(t *testing.T) {
	l := listen(t, [16]byte{})
	fd := testerr.Must(socket())(t)
	defer unix.Close(fd)
	good := reports.Marshal(&Report{Rank: 5})
	for _, b := range [][]byte{{}, good[:len(good)-1], append(good, 0), make([]byte, 1<<16)} {
		testerr.Check(t, unix.Sendto(fd, b, 0, &unix.SockaddrUnix{Name: l.Name()}))
	}
	if r, ok := l.First(); ok {
		t.Errorf("First = %v of malformed reports", r)
	}
}

func FuzzReport(f *testing.F) {
	f.Add(reports.Marshal(&Report{[16]byte{1}, 2, "why"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := reports.Unmarshal(b); err == nil && len(b) > maxBytes {
			t.Errorf("%d bytes are a report: %v", len(b), r)
		}
	})
}
