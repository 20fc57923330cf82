package cudaipc

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(os.Stdin); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func config(d *gpu.Device, rank int) registeredmem.Options {
	return registeredmem.Options{Rank: rank, Group: [16]byte{1}, Secret: [32]byte{2}, Device: d, Timeout: 20 * time.Second}
}

func newRegistry(t testing.TB, cfg registeredmem.Options) *registeredmem.Registry {
	t.Helper()
	r := testerr.Must(registeredmem.NewRegistry(cfg))(t)
	t.Cleanup(func() { r.Close() })
	return r
}

// newMemory returns registered memory of zeros.
func newMemory(t testing.TB, r *registeredmem.Registry, words int) (*registeredmem.Memory, []byte) {
	t.Helper()
	b := testerr.Must(gpu.Upload(r.Device(), make([]uint64, words)))(t)
	t.Cleanup(func() { b.Close() })
	m := testerr.Must(r.Register(b))(t)
	data := testerr.Must(m.MarshalBinary())(t)
	return m, data
}

// pair is a connection from rank 0 to rank 1, both in this process.
type pair struct {
	mine, theirs *registeredmem.Registry
	src          *registeredmem.Memory // rank 0's
	dst          *registeredmem.Memory // rank 1's, imported
	conn         *connection.Connection
	driver       *driver // the connection's
}

const pairWords = 4096

// newPair connects; storeValues as in newDriver. timeout is rank 0's, and may be too short
// for a busy machine to import memory in.
func newPair(t testing.TB, storeValues bool, timeout time.Duration) *pair {
	t.Helper()
	cfg := config(testdev.Open(t, 0), 0)
	cfg.Timeout = timeout
	p := &pair{mine: newRegistry(t, cfg), theirs: newRegistry(t, config(testdev.Open(t, 1), 1))}
	_, data := newMemory(t, p.theirs, pairWords)
	p.src, _ = newMemory(t, p.mine, pairWords)
	var err error
	for end := time.Now().Add(longTimeout); p.dst == nil; {
		p.dst, err = p.mine.Import(t.Context(), data)
		if err != nil && (!errors.Is(err, mscclgo.ErrTimeout) || time.Now().After(end)) {
			t.Fatal(err)
		}
	}
	p.driver, p.conn = newConnection(t, p.mine, 1, storeValues)
	return p
}

// newConnection makes a connection to a peer; storeValues as in newDriver.
func newConnection(t testing.TB, r *registeredmem.Registry, peer int, storeValues bool) (*driver, *connection.Connection) {
	t.Helper()
	d := testerr.Must(newDriver(r.Device(), r.Timeout(), storeValues))(t)
	c := testerr.Must(connection.New(r, peer, registeredmem.CudaIPC, d))(t)
	t.Cleanup(func() { c.Close() })
	return d, c
}

// hold keeps the stream from going on until the result is called.
func (p *pair) hold(t testing.TB) (release func()) { return testlink.HoldStream(t, p.driver.stream) }

func words(t testing.TB, m *registeredmem.Memory, n int) []uint64 {
	t.Helper()
	values := make([]uint64, n)
	testerr.Check(t, gpu.CopyOut(values, m.Buffer()))
	return values
}

func set(t testing.TB, m *registeredmem.Memory, values ...uint64) {
	t.Helper()
	testerr.Check(t, gpu.CopyIn(m.Buffer(), values))
}

// The child is rank 1 in another process, on the device that childEnv names.
const (
	childEnv    = "CUDAIPC_TEST_CHILD"
	childRounds = 50
	childWords  = 1000
)

// child shares memory whose first word counts rounds; in round k all words
// behind it must be at least k. It says what it found.
func child(in io.Reader) error {
	device, err := gpu.Open(os.Getenv(childEnv))
	if err != nil {
		return err
	}
	defer device.Close()
	r, err := registeredmem.NewRegistry(config(device, 1))
	if err != nil {
		return err
	}
	defer r.Close()
	buf, err := gpu.Upload(device, make([]uint64, 1+childWords))
	if err != nil {
		return err
	}
	defer buf.Close()
	m, err := r.Register(buf)
	if err != nil {
		return err
	}
	memory, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	e, err := NewEndpoint(r)
	if err != nil {
		return err
	}
	endpoint, err := e.MarshalBinary()
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(memory))
	fmt.Println(hex.EncodeToString(endpoint))
	fmt.Println(checkRounds(buf))
	bufio.NewScanner(in).Scan() // until the parent is done
	return nil
}

func checkRounds(buf *gpu.Buffer) error {
	round := make([]uint64, 1)
	data, err := buf.Slice(8, 8*childWords)
	if err != nil {
		return err
	}
	values := make([]uint64, childWords)
	for end := time.Now().Add(20 * time.Second); round[0] < childRounds; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			return fmt.Errorf("the word stays at %d", round[0])
		}
		if err := gpu.CopyOut(round, buf); err != nil {
			return err
		}
		if err := gpu.CopyOut(values, data); err != nil {
			return err
		}
		for i, v := range values {
			if v < round[0] {
				return fmt.Errorf("in round %d, word %d is of round %d", round[0], i, v)
			}
		}
	}
	return nil
}
