package registeredmem

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// config returns what a rank of the tests' group is.
func config(t testing.TB, rank int) Options {
	return Options{
		Rank: rank, Group: [16]byte{1, 2}, Secret: [32]byte{3, 4}, Device: testdev.Open(t, rank),
		Timeout: 20 * time.Second, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func newRegistry(t testing.TB, cfg Options) *Registry {
	t.Helper()
	r := testerr.Must(NewRegistry(cfg))(t)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("closing the %v: %v", r, err)
		}
	})
	return r
}

// upload returns a buffer of that many bytes, which count up from first.
func upload(t testing.TB, d *gpu.Device, n int, first byte) *gpu.Buffer {
	t.Helper()
	b := testerr.Must(gpu.Upload(d, counting(n, first)))(t)
	t.Cleanup(func() { b.Close() })
	return b
}

func counting(n int, first byte) []byte {
	values := make([]byte, n)
	for i := range values {
		values[i] = first + byte(i)
	}
	return values
}

func register(t testing.TB, r *Registry, b *gpu.Buffer) (*Memory, []byte) {
	t.Helper()
	m := testerr.Must(r.Register(b))(t)
	data := testerr.Must(m.MarshalBinary())(t)
	return m, data
}

func mustImport(t testing.TB, r *Registry, data []byte) *Memory {
	t.Helper()
	return testerr.Must(r.Import(t.Context(), data))(t)
}

// expectBytes compares what a buffer holds.
func expectBytes(t testing.TB, b *gpu.Buffer, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	testerr.Check(t, gpu.CopyOut(got, b))
	testcmp.Equal(t, "the memory", got, want)
}

// logged collects what a registry logs.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) await(t testing.TB, text string) {
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

// openFiles counts this process's descriptors, once they have settled.
func openFiles(t testing.TB) int {
	t.Helper()
	n, same := -1, 0
	for end := time.Now().Add(2 * time.Second); same < 5 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		all := testerr.Must(os.ReadDir("/proc/self/fd"))(t)
		if len(all) == n {
			same++
		} else {
			n, same = len(all), 0
		}
	}
	return n
}

// expectFiles checks that some descriptors are open, and at most some more. It waits for descriptors
// that are about to be closed.
func expectFiles(t testing.TB, want, more int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		n := openFiles(t)
		if n >= want && n <= want+more {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are open, not %d to %d", n, want, want+more)
		}
	}
}

// The child is rank 1 in another process, on the device that childEnv names. It
// takes commands on its input, a line each, and answers with a line each.
const (
	childEnv     = "REGISTEREDMEM_TEST_CHILD"
	foreignEnv   = "REGISTEREDMEM_TEST_FOREIGN" // share memory of the driver's own allocator
	childBytes   = 3 << 20
	childFirst   = 17 // the first byte of its memory, from which they count up
	sliceOffset  = 1<<20 + 8
	sliceBytes   = 1000
	childTimeout = 60 * time.Second
)

func child() error {
	time.AfterFunc(childTimeout, func() { os.Exit(3) })
	device, err := gpu.Open(os.Getenv(childEnv))
	if err != nil {
		return err
	}
	defer device.Close()
	r, err := NewRegistry(Options{Rank: 1, Group: [16]byte{1, 2}, Secret: [32]byte{3, 4}, Device: device})
	if err != nil {
		return err
	}
	defer r.Close()
	buf, free, err := childBuffer(device)
	if err != nil {
		return err
	}
	defer free()
	if err := gpu.CopyIn(buf, counting(childBytes, childFirst)); err != nil {
		return err
	}
	memories := map[string]*Memory{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		command, name, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "register": // the whole, or a slice by its number
			part := buf
			if name != "whole" {
				var number uint64
				fmt.Sscan(name, &number)
				if part, err = buf.Slice(sliceOffset+number*sliceBytes, sliceBytes); err != nil {
					return err
				}
			}
			if memories[name], err = r.Register(part); err != nil {
				return err
			}
			data, err := memories[name].MarshalBinary()
			if err != nil {
				return err
			}
			fmt.Println(hex.EncodeToString(data))
		case "unregister":
			fmt.Println(memories[name].Close())
		case "byte": // the first of a memory
			one := make([]byte, 1)
			if err := gpu.CopyOut(one, memories[name].Buffer()); err != nil {
				return err
			}
			fmt.Println(one[0])
		default:
			return fmt.Errorf("unknown command %q", command)
		}
	}
	return in.Err()
}

func childBuffer(device *gpu.Device) (buf *gpu.Buffer, free func(), err error) {
	if os.Getenv(foreignEnv) != "" {
		return testdev.Foreign(device, childBytes)
	}
	if buf, err = device.Alloc(childBytes); err != nil {
		return nil, nil, err
	}
	return buf, func() { buf.Close() }, nil
}

// peer is a running child.
type peer struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startPeer(t *testing.T, env ...string) *peer {
	t.Helper()
	p := &peer{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(append(os.Environ(), childEnv+"="+testdev.Name(t, 1), "GORACE=atexit_sleep_ms=0"), env...)
	p.cmd.Stderr = t.Output()
	p.in = testerr.Must(p.cmd.StdinPipe())(t)
	out := testerr.Must(p.cmd.StdoutPipe())(t)
	p.out = bufio.NewScanner(out)
	testerr.Check(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// do has the child do a command and returns its answer.
func (p *peer) do(command string) string {
	p.t.Helper()
	fmt.Fprintln(p.in, command)
	if !p.out.Scan() {
		p.t.Fatalf("the child ended at %q", command)
	}
	if strings.HasPrefix(p.out.Text(), "error") {
		p.t.Fatalf("%s: %s", command, p.out.Text())
	}
	return p.out.Text()
}

// register has the child register a memory and returns its bytes.
func (p *peer) register(name string) []byte {
	p.t.Helper()
	data, err := hex.DecodeString(p.do("register " + name))
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

func (p *peer) kill() {
	p.in.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
}
