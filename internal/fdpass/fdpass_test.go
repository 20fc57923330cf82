package fdpass

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

var testKey = Key{Group: [16]byte{1, 2, 3}, Secret: [32]byte{4, 5, 6}}

// The environment of a process that calls a server instead of testing.
const callEnv = "FDPASS_TEST_CALL"

func TestMain(m *testing.M) {
	if name := os.Getenv(callEnv); name != "" {
		fmt.Print(call(name, []byte("child")))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// call returns what a server answered, or the error.
func call(name string, request []byte) string {
	return callWith(testKey, name, request)
}

func callWith(key Key, name string, request []byte) (out string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := Call(ctx, key, name, request, func(a Answer) error {
		out = string(a.Body)
		if a.File != nil {
			content, err := io.ReadAll(a.File)
			out += "+" + string(content)
			return err
		}
		if a.Value != nil {
			out += fmt.Sprintf("+%v", a.Value)
		}
		return nil
	})
	if err != nil {
		return "error: " + err.Error()
	}
	return out
}

// logged collects what a server logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.mu.Lock()
		found := strings.Contains(l.b.String(), text)
		l.mu.Unlock()
		if found {
			return
		}
	}
	t.Errorf("the log never said %q", text)
}

// serve answers each request with itself, and as it asks with a file or a value.
func serve(t *testing.T) (*Server, *logged) {
	t.Helper()
	log := new(logged)
	s := testerr.Must(Listen(testKey, 0, slog.New(slog.NewTextHandler(log, nil)), func(request []byte, sameProcess bool) Answer {
		a := Answer{Body: request}
		switch string(request) {
		case "file", "child":
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				break
			}
			fmt.Fprint(w, "content")
			w.Close()
			a.File = r
		case "value":
			a.Value = []int{1, 2}
		}
		return a
	}))(t)
	t.Cleanup(func() { s.Close() })
	return s, log
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func expectError(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range append(parts, "error: ") {
		if !strings.Contains(got, part) {
			t.Errorf("got %q, which has no %q", got, part)
		}
	}
}

func TestCall(t *testing.T) {
	s, _ := serve(t)
	long := strings.Repeat("x", MaxBody)
	expect(t, call(s.Name(), nil), "")
	expect(t, call(s.Name(), []byte(long)), long)
	expect(t, call(s.Name(), []byte("file")), "file+content")
	expect(t, call(s.Name(), []byte("value")), "value+[1 2]")
	expectError(t, call(s.Name(), []byte(long+"x")), "invalid use", "4097")
	expectError(t, call("mscclgo-short", nil), "invalid use")
	expectError(t, call(namePrefix+strings.Repeat("0", 2*nameRandom), nil), "remote failure", "nobody listens")
}

// TestNoDescriptors has a caller that cannot open a socket: the server is not to blame.
func TestNoDescriptors(t *testing.T) {
	s, _ := serve(t)
	var limit syscall.Rlimit
	testerr.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 3
	testerr.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	got := call(s.Name(), nil)
	testerr.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	expectError(t, got, "system error", "too many open files")
}

func TestManyAtOnce(t *testing.T) {
	s, _ := serve(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			request := []string{"file", "value", "neither"}[i%3]
			want := map[string]string{"file": "file+content", "value": "value+[1 2]", "neither": "neither"}[request]
			expect(t, call(s.Name(), []byte(request)), want)
		})
	}
	wg.Wait()
}

// TestConnect keeps the connection on which the answer came: packets go both ways, and each
// end learns that the other has gone.
func TestConnect(t *testing.T) {
	stays := make(chan *net.UnixConn, 1)
	s := testerr.Must(Listen(testKey, 0, slog.New(slog.DiscardHandler), func(request []byte, _ bool) Answer {
		return Answer{Body: request, Stay: func(c *net.UnixConn) { stays <- c }}
	}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	var near *net.UnixConn
	testerr.Check(t, Connect(ctx, testKey, s.Name(), []byte("stay"), func(a Answer, c *net.UnixConn) error {
		near = c
		expect(t, string(a.Body), "stay")
		return nil
	}))
	defer near.Close()
	cancel()
	far := <-stays
	if err := s.Close(); err != nil { // which the connection outlives
		t.Fatal(err)
	}
	for _, c := range [][2]*net.UnixConn{{near, far}, {far, near}} {
		for _, packet := range []string{"one", "two"} {
			testerr.Must(c[0].Write([]byte(packet)))(t)
		}
		got := make([]byte, 10)
		n := testerr.Must(c[1].Read(got))(t)
		expect(t, string(got[:n]), "one")
		testerr.Must(c[1].Read(got))(t)
	}
	far.Close()
	if n, err := near.Read(make([]byte, 10)); err != io.EOF {
		t.Errorf("%d bytes, %v after the other end has closed", n, err)
	}
}

// TestStayGone has a caller that does not wait for the answer.
func TestStayGone(t *testing.T) {
	stays, asked := make(chan *net.UnixConn, 1), make(chan struct{})
	s := testerr.Must(Listen(testKey, 0, slog.New(slog.DiscardHandler), func([]byte, bool) Answer {
		<-asked
		return Answer{Stay: func(c *net.UnixConn) { stays <- c }}
	}))(t)
	defer s.Close()
	conn := dialRaw(t, s.Name())
	testerr.Must(testKey.member(s.Name(), 0).Client(t.Context(), conn, nil))(t)
	testerr.Must(conn.Write(encodeRequest(nil)))(t)
	conn.Close()
	close(asked)
	if c := <-stays; c != nil {
		t.Error("the handler got a connection of which the other end is closed")
	}
}

func TestTakeError(t *testing.T) {
	s, _ := serve(t)
	want := errors.New("not wanted")
	if err := Call(t.Context(), testKey, s.Name(), []byte("value"), func(Answer) error { return want }); err != want {
		t.Errorf("got %v", err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	s, log := serve(t)
	other := testKey
	other.Secret[31] ^= 1
	expectError(t, callWith(other, s.Name(), nil), "remote failure", "secret")
	log.await(t, handshake.ErrStranger.Error())
	other = testKey
	other.Group[0] ^= 1
	expectError(t, callWith(other, s.Name(), nil), "remote failure")
	expect(t, call(s.Name(), []byte("file")), "file+content")
}

// dialRaw connects without this package's part of the protocol.
func dialRaw(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	conn := testerr.Must(net.DialUnix("unixpacket", nil, address(name)))(t)
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// expectHangup reads until the other end has closed.
func expectHangup(t *testing.T, conn *net.UnixConn) {
	t.Helper()
	n, err := conn.Read(make([]byte, maxAnswer))
	if err == nil {
		t.Errorf("got %d bytes, not a hang-up", n)
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the other end did not hang up")
	}
}

func TestNoise(t *testing.T) {
	s, log := serve(t)
	for _, noise := range [][]byte{{0}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, maxRequest), make([]byte, maxRequest+1)} {
		conn := dialRaw(t, s.Name())
		testerr.Must(conn.Write(noise))(t)
		expectHangup(t, conn)
	}
	log.await(t, "fdpass: refused a connection")
	dialRaw(t, s.Name()).Close()
	expect(t, call(s.Name(), []byte("file")), "file+content")
}

func TestSilentStrangersMakeRoom(t *testing.T) {
	s, _ := serve(t)
	var first *net.UnixConn
	for i := range handshake.MaxHalfOpen + 10 {
		conn := dialRaw(t, s.Name())
		if i == 0 {
			first = conn
		}
	}
	expect(t, call(s.Name(), []byte("value")), "value+[1 2]")
	expectHangup(t, first)
	start := time.Now()
	s.Close()
	if took := time.Since(start); took > handshake.DefaultPatience/2 {
		t.Errorf("closing over silent strangers took %v", took)
	}
}

// impostor listens under a name of its own, lets callers in and answers them.
func impostor(t *testing.T, answer func(*net.UnixConn)) (name string) {
	t.Helper()
	name = fmt.Sprintf("%s%032x", namePrefix, time.Now().UnixNano())
	ln := testerr.Must(net.ListenUnix("unixpacket", address(name)))(t)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	})
	return name
}

// nameOf returns the name of the socket that accepted c.
func nameOf(c *net.UnixConn) string { return strings.TrimPrefix(c.LocalAddr().String(), "@") }

func TestImpostors(t *testing.T) {
	before := openFiles(t)
	t.Run("with noise", func(t *testing.T) {
		name := impostor(t, func(c *net.UnixConn) {
			c.Read(make([]byte, 100))
			c.Write([]byte("220 hello"))
		})
		expectError(t, call(name, nil), "remote failure", handshake.ErrNoise.Error())
	})
	t.Run("without the secret", func(t *testing.T) {
		name := impostor(t, func(c *net.UnixConn) {
			Key{Group: testKey.Group}.member(nameOf(c), 0).Server(c, func(net.Conn, []byte) error {
				t.Error("a caller is believed to have another secret")
				return nil
			})
		})
		expectError(t, call(name, nil), "remote failure", "hung up")
	})
	t.Run("with files and a false proof", func(t *testing.T) {
		name := impostor(t, func(c *net.UnixConn) {
			hello := make([]byte, 100)
			n, _ := c.Read(hello)
			r, w, _ := os.Pipe()
			defer r.Close()
			defer w.Close()
			rights := syscall.UnixRights(int(r.Fd()), int(w.Fd()))
			c.WriteMsgUnix(hello[:n], rights, nil)
			c.Read(hello)
			c.WriteMsgUnix(append([]byte{1}, make([]byte, 32)...), rights, nil)
		})
		expectError(t, call(name, nil), "remote failure", handshake.ErrStranger.Error())
	})
	t.Run("of the group, with a malformed answer", func(t *testing.T) {
		name := impostor(t, func(c *net.UnixConn) {
			testKey.member(nameOf(c), 0).Server(c, func(net.Conn, []byte) error { return nil })
			c.Read(make([]byte, maxRequest))
			r, w, _ := os.Pipe()
			defer r.Close()
			defer w.Close()
			c.WriteMsgUnix(content{files: 2}.encode(), syscall.UnixRights(int(r.Fd())), nil)
		})
		expectError(t, call(name, nil), "remote failure", "malformed")
	})
	t.Run("that relays", func(t *testing.T) {
		s, _ := serve(t)
		name := impostor(t, func(c *net.UnixConn) {
			behind := dialRaw(t, s.Name())
			for from, to := c, behind; ; from, to = to, from {
				packet := make([]byte, maxRequest)
				n, err := from.Read(packet)
				if err != nil {
					break
				}
				to.Write(packet[:n])
			}
			behind.Close()
		})
		expectError(t, call(name, []byte("file")), "remote failure")
	})
	t.Run("that is silent", func(t *testing.T) {
		release := make(chan struct{})
		name := impostor(t, func(*net.UnixConn) { <-release })
		defer close(release)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := Call(ctx, testKey, name, nil, func(Answer) error { return nil })
		if !errors.Is(err, mscclgo.ErrTimeout) {
			t.Errorf("past the deadline: %v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if err := Call(ctx, testKey, name, nil, nil); !errors.Is(err, mscclgo.ErrAborted) {
			t.Errorf("cancelled: %v", err)
		}
	})
	expectFiles(t, before)
}

// openFiles counts this process's descriptors, once they have settled.
func openFiles(t *testing.T) int {
	t.Helper()
	count := func() int {
		all := testerr.Must(os.ReadDir("/proc/self/fd"))(t)
		return len(all)
	}
	n, same := count(), 0
	for end := time.Now().Add(2 * time.Second); same < 5 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		if now := count(); now != n {
			n, same = now, 0
		} else {
			same++
		}
	}
	return n
}

// expectFiles checks that there are as many descriptors as before, once servers that are
// about to close theirs have done so.
func expectFiles(t *testing.T, before int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		after := openFiles(t)
		if after == before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are open, %d were before", after, before)
		}
	}
}

func TestNoDescriptorLeaks(t *testing.T) {
	s, _ := serve(t)
	call(s.Name(), []byte("file"))
	before := openFiles(t)
	for range 50 {
		call(s.Name(), []byte("file"))
		call(s.Name(), []byte("value"))
		callWith(Key{}, s.Name(), nil)
	}
	expectFiles(t, before)
}

// child calls the server from another process.
func child(t *testing.T, name string, attr *syscall.SysProcAttr) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), callEnv+"="+name, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestOtherProcess(t *testing.T) {
	s, _ := serve(t)
	expect(t, child(t, s.Name(), nil), "child+content")
}

func TestValueStaysInProcess(t *testing.T) {
	log := new(logged)
	s := testerr.Must(Listen(testKey, 0, slog.New(slog.NewTextHandler(log, nil)), func(_ []byte, sameProcess bool) Answer {
		if sameProcess {
			t.Error("a child counts as the same process")
		}
		return Answer{Value: "secret"}
	}))(t)
	defer s.Close()
	expectError(t, child(t, s.Name(), nil), "remote failure")
	log.await(t, "leave the process")
}

func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	s, log := serve(t)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	// It knows the secret, and neither end wants the other.
	expectError(t, child(t, s.Name(), nobody), "remote failure", "user 0")
	log.await(t, "of user 65534")
	expect(t, call(s.Name(), []byte("file")), "file+content")
}

func TestClose(t *testing.T) {
	s, _ := serve(t)
	for range 2 {
		testerr.Check(t, s.Close())
	}
	expectError(t, call(s.Name(), nil), "remote failure", "nobody listens")
}
