package handshake

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Silent strangers are hung up on when their time is over.
func TestSilentStranger(t *testing.T) {
	for _, mode := range []Mode{Clear, TLS, Either} {
		a, log := echo(t, New(with(func(o *Options) { o.Mode, o.Patience = mode, 50*time.Millisecond })))
		conn := dialTo(t, a.Addr())
		if got := expectHangup(t, conn); len(got) > 0 {
			t.Errorf("mode %d: it was sent %x", mode, got)
		}
		log.await(t, "i/o timeout")
	}
}

// Hundreds of strangers neither keep members out nor fill the log.
func TestHundredsOfStrangers(t *testing.T) {
	m := New(testOptions)
	a, log := echo(t, m)
	start := time.Now()
	first := dialTo(t, a.Addr())
	for i := range 2 * MaxHalfOpen {
		conn := dialTo(t, a.Addr())
		if i%2 == 0 {
			conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		}
	}
	for range MaxHalfOpen { // so that first is surely the oldest of too many
		dialTo(t, a.Addr())
	}
	expectHangup(t, first)
	works(t, m, a)
	if n, most := len(log.lines()), 1+int(time.Since(start)/logEvery); n > most {
		t.Errorf("%d lines were logged, at most %d were to be", n, most)
	}
	for end := time.Now().Add(10 * time.Second); notLogged(t, a, log) < MaxHalfOpen; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d refusals are counted as not logged", notLogged(t, a, log))
		}
	}
	stop := time.Now()
	a.Stop()
	a.Wait()
	if took := time.Since(stop); took > testOptions.Patience/2 {
		t.Errorf("stopping over silent strangers took %v", took)
	}
}

// notLogged returns how many refusals an acceptor has counted instead of logging them: those
// that its log tells of, and those since then.
func notLogged(t *testing.T, a *Acceptor, log *logs) int {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	sum := a.unlogged
	for _, line := range log.lines() {
		_, text, _ := strings.Cut(line, "unlogged=")
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("the line %q has no number of refusals: %v", line, err)
		}
		sum += n
	}
	return sum
}

// broken is a listener whose Accept fails until it is closed.
type broken struct {
	net.Listener
	mu     sync.Mutex
	calls  int
	closed bool
}

func (b *broken) Accept() (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if b.closed {
		return nil, net.ErrClosed
	}
	return nil, errors.New("too many open files")
}

func (b *broken) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.Listener.Close()
}

func TestFailedAcceptsBackOff(t *testing.T) {
	log := &logs{}
	b := &broken{Listener: listen(t)}
	a := NewAcceptor("test", slog.New(slog.NewTextHandler(log, nil)), nil, b)
	start := time.Now()
	time.Sleep(200 * time.Millisecond)
	a.Stop()
	a.Wait()
	a.Stop()
	most := 2 // at once and at the end, besides those after 5, 15, 35, 75, 155 ms
	for at, pause := time.Duration(minBackOff), time.Duration(minBackOff); at < time.Since(start); at += pause {
		pause = min(2*pause, maxBackOff)
		most++
	}
	if b.calls < 2 || b.calls > most {
		t.Errorf("Accept was called %d times, at most %d were to be", b.calls, most)
	}
	if l := log.lines(); len(l) != 1 || !strings.Contains(l[0], "too many open files") {
		t.Errorf("the log has %q", l)
	}
}

// full is a listener that finds no descriptor as long as it has accepted as many as there
// are and none of them is closed.
type full struct {
	net.Listener
	open atomic.Int32
	most int32
}

type counted struct {
	net.Conn
	once sync.Once
	open *atomic.Int32
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

func (f *full) Accept() (net.Conn, error) {
	if f.open.Load() >= f.most {
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	f.open.Add(1)
	return &counted{Conn: conn, open: &f.open}, nil
}

// Silent strangers have all descriptors: the oldest gives one up, and a member gets in.
func TestNoDescriptorLeft(t *testing.T) {
	m := New(testOptions)
	log := &logs{}
	f := &full{Listener: listen(t), most: 5}
	a := NewAcceptor("test", slog.New(slog.NewTextHandler(log, nil)), func(raw net.Conn, _ func() error) (func() error, error) {
		conn, err := m.Server(raw, func(net.Conn, []byte) error { return nil })
		return func() error {
			defer conn.Close()
			_, err := io.Copy(conn, conn)
			return err
		}, err
	}, f)
	defer a.Wait()
	defer a.Stop()
	first := dialTo(t, a.Addr())
	for range 20 {
		dialTo(t, a.Addr())
	}
	expectHangup(t, first)
	works(t, m, a)
	if l := log.lines(); !strings.Contains(l[0], "too many open files") {
		t.Errorf("the log begins with %q", l[0])
	}
}

// starved is a listener that finds no descriptor until it is fed.
type starved struct {
	net.Listener
	fed atomic.Bool
}

func (s *starved) Accept() (net.Conn, error) {
	if !s.fed.Load() {
		return nil, os.NewSyscallError("accept4", syscall.EMFILE)
	}
	return s.Listener.Accept()
}

// A lack of descriptors that lasts is told once, and is over when a member gets in.
func TestWhenShort(t *testing.T) {
	m := New(testOptions)
	a, _ := echo(t, m)
	var told atomic.Int32
	a.WhenShort(20*time.Millisecond, func(err error) {
		if errors.Is(err, syscall.EMFILE) {
			told.Add(1)
		}
	})
	works(t, m, a)
	if err := a.Short(); err != nil || told.Load() > 0 {
		t.Errorf("before there is a lack: %v, told %d times", err, told.Load())
	}
	s := &starved{Listener: listen(t)}
	a.Add(s)
	dialTo(t, s.Addr())
	for end := time.Now().Add(20 * time.Second); told.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	if err := a.Short(); !errors.Is(err, syscall.EMFILE) || told.Load() != 1 {
		t.Errorf("with a lack: %v, told %d times, want once", err, told.Load())
	}
	s.fed.Store(true)
	for end := time.Now().Add(20 * time.Second); a.Short() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the lack is not over")
		}
	}
}

// Only a dialer that waits makes a lack of descriptors one.
func TestDialled(t *testing.T) {
	ln := listen(t)
	if dialled(ln) {
		t.Error("nobody has dialled")
	}
	dialTo(t, ln.Addr())
	for end := time.Now().Add(20 * time.Second); !dialled(ln); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a dialer is not seen")
		}
	}
}

func TestFewDescriptors(t *testing.T) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	few := r
	few.Cur = 512
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	got := maxHalfOpen()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	if got != 32 {
		t.Errorf("%d connections may be half open with 512 descriptors, want 32", got)
	}
}

// What serves a connection ends before Wait returns, and its error is logged.
func TestServeFails(t *testing.T) {
	log := &logs{}
	a := NewAcceptor("test", slog.New(slog.NewTextHandler(log, nil)), func(net.Conn, func() error) (func() error, error) {
		return func() error { return errors.New("no room") }, nil
	}, listen(t), listen(t))
	expectHangup(t, dialTo(t, a.listeners[1].Addr()))
	log.await(t, "test: refused a connection")
	log.await(t, "no room")
	a.Stop()
	a.Wait()
}

// A dialer that is told that it is admitted is served, though the acceptor stops or needs
// its descriptor just then; one that is not known yet is not admitted.
func TestKnownDialerIsServed(t *testing.T) {
	m := New(testOptions)
	evict := func(a *Acceptor) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.evict()
	}
	for _, hangUp := range []func(*Acceptor){evict, (*Acceptor).Stop} {
		for _, early := range []bool{false, true} {
			acceptor := make(chan *Acceptor, 1)
			a, _ := echoIf(t, m, func(known func() error) error {
				a := <-acceptor
				if early {
					hangUp(a)
				}
				err := known()
				hangUp(a)
				return err
			})
			acceptor <- a
			if !early {
				works(t, m, a)
			} else if conn, err := m.Dial(t.Context(), a.Addr().String(), testClaim); err == nil {
				conn.Close()
				t.Error("a connection that was closed before was admitted")
			}
		}
	}
}
