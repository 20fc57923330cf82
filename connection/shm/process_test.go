package shm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// childEnv marks a process that is rank 1 of a test, on the device that it names.
const childEnv = "MSCCLGO_TEST_SHM"

func TestMain(m *testing.M) {
	if device := os.Getenv(childEnv); device != "" {
		if err := child(device); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// childSize is the size of rank 1's memory.
const childSize = 4 << 20

// child says where it is, hears where rank 0 is, copies all that it was sent back once it is
// told to, until its input ends.
func child(device string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testlink.Timeout)
	defer cancel()
	d, err := gpu.Open(device)
	if err != nil {
		return err
	}
	reg, err := registeredmem.NewRegistry(registeredmem.Options{Rank: 1, Group: [16]byte{1}, Secret: [32]byte{3}, Device: d, Timeout: testlink.Timeout, Unmapped: true})
	if err != nil {
		return err
	}
	t, err := New(reg, Options{Secret: secret})
	if err != nil {
		return err
	}
	b, err := d.Alloc(childSize)
	if err != nil {
		return err
	}
	m, err := reg.Register(b)
	if err != nil {
		return err
	}
	e, err := t.NewEndpoint()
	if err != nil {
		return err
	}
	for _, one := range []interface{ MarshalBinary() ([]byte, error) }{e, m} {
		data, err := one.MarshalBinary()
		if err != nil {
			return err
		}
		fmt.Println(hex.EncodeToString(data))
	}
	in := bufio.NewScanner(os.Stdin)
	var c *connection.Connection
	var dst *registeredmem.Memory
	for in.Scan() {
		what, hexed, _ := strings.Cut(in.Text(), " ")
		data, err := hex.DecodeString(hexed)
		if err != nil {
			return err
		}
		switch what {
		case "endpoint":
			c, err = e.Connect(ctx, data)
		case "memory":
			dst, err = reg.Import(ctx, data)
		case "copy":
			err = errors.Join(c.Write(dst, 0, m, 0, childSize), c.Flush(ctx))
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return errors.Join(c.Close(), reg.Close(), t.Close(), b.Close(), d.Close())
}

// process is rank 1 in a process of its own, connected with rank 0 both ways.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner

	to   *link                 // from rank 0
	dst  *registeredmem.Memory // of rank 1
	mine *registeredmem.Memory // of rank 0, which rank 1 writes to
}

func newProcess(t *testing.T, a *rank) *process {
	t.Helper()
	p := &process{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), childEnv+"="+testdev.Name(t, 1), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stderr = os.Stderr
	p.in = testerr.Must(p.cmd.StdinPipe())(t)
	out := testerr.Must(p.cmd.StdoutPipe())(t)
	p.out = bufio.NewScanner(out)
	testerr.Check(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	endpoint, memoryBytes := p.line(t), p.line(t)
	c := testerr.Must(a.e.connect(t.Context(), endpoint))(t)
	conn := testerr.Must(connection.New(a.reg, 1, registeredmem.SHM, c))(t)
	t.Cleanup(func() { conn.Close() })
	p.to = &link{conn, c}
	p.dst = testerr.Must(a.reg.Import(t.Context(), memoryBytes))(t)
	p.mine = memory(t, a, onDevice, childSize)
	p.say(t, "endpoint", testlink.Marshal(t, a.e))
	p.say(t, "memory", testlink.Marshal(t, p.mine))
	return p
}

// line returns bytes that the process has written.
func (p *process) line(t *testing.T) []byte {
	t.Helper()
	if !p.out.Scan() {
		t.Fatal("the process has ended:", p.out.Err())
	}
	return testerr.Must(hex.DecodeString(p.out.Text()))(t)
}

// say has the process do something.
func (p *process) say(t *testing.T, what string, data []byte) {
	t.Helper()
	testerr.Must(fmt.Fprintf(p.in, "%s %x\n", what, data))(t)
	if !p.out.Scan() || p.out.Text() != "done" {
		t.Fatalf("the process answers %q to %s", p.out.Text(), what)
	}
}

// TestProcesses has two processes write to each other, and the other end in good order.
func TestProcesses(t *testing.T) {
	a := newRank(t, 0, Options{Lost: func(_ int, err error) { t.Errorf("Lost says %v", err) }})
	p := newProcess(t, a)
	src := memory(t, a, onDevice, childSize)
	data := testlink.Noise(childSize)
	testlink.Set(t, src, data)
	testerr.Check(t, errors.Join(p.to.Write(p.dst, 0, src, 0, childSize), p.to.Flush(t.Context())))
	p.say(t, "copy", nil)
	testcmp.Equal(t, "what came back", testlink.Get(t, p.mine), data)
	p.in.Close()
	testerr.Report(t, p.cmd.Wait())
	testerr.Expect(t, failed(t, &p.to.d.half), mscclgo.ErrRemote, "has closed the connection")
}

// TestKilled kills the peer's process while data are under way: all ends with an error that
// names it, and no ring stays mapped.
func TestKilled(t *testing.T) {
	told := make(chan error, 10)
	a := newRank(t, 0, Options{Lost: func(_ int, err error) { told <- err }})
	rings := mappedRings(t)
	p := newProcess(t, a)
	src := memory(t, a, onDevice, childSize)
	flushed := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			if err := errors.Join(p.to.Write(p.dst, 0, src, 0, childSize), p.to.Flush(context.Background())); err != nil {
				flushed <- err
				return
			}
			if n == 3 {
				close(begun)
			}
		}
	}()
	<-begun
	testerr.Check(t, p.cmd.Process.Kill())
	testerr.Expect(t, <-flushed, mscclgo.ErrRemote, "rank 0, peer 1")
	testerr.Expect(t, failed(t, &p.to.d.half), mscclgo.ErrRemote, "its process has ended")
	for range 2 { // of each direction
		testerr.Expect(t, <-told, mscclgo.ErrRemote, "its process has ended")
	}
	testerr.Report(t, p.to.Close())
	testlink.Eventually(t, "no ring is left", func() bool { return mappedRings(t) == rings })
}

// mappedRings returns how many rings this process maps.
func mappedRings(t *testing.T) int {
	t.Helper()
	maps := testerr.Must(os.ReadFile("/proc/self/maps"))(t)
	return strings.Count(string(maps), "/memfd:mscclgo-ring")
}

// TestStopped stops the peer's process, which fails the connection in time; the process can
// go on, and finds that.
func TestStopped(t *testing.T) {
	a := newRank(t, 0, Options{Timeout: 500 * time.Millisecond})
	p := newProcess(t, a)
	src := memory(t, a, onDevice, childSize)
	testerr.Check(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	err := errors.Join(p.to.Write(p.dst, 0, src, 0, childSize), p.to.Flush(t.Context()))
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 0, peer 1", fmt.Sprintf("its process is stopped (process %d)", p.cmd.Process.Pid))
	start := time.Now()
	testerr.Report(t, errors.Join(p.to.Close(), p.mine.Close(), a.reg.Close(), a.t.Close()))
	if took := time.Since(start); took > testlink.Timeout/2 {
		t.Errorf("closing took %v", took)
	}
}
