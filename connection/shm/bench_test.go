package shm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// benchPair is two ranks, connected both ways, of one process and on two devices where the
// machine has them.
type benchPair struct {
	regs  [2]*registeredmem.Registry
	conns [2]*connection.Connection
}

// transport is what a benchmark needs of a transport.
type transport interface {
	NewEndpoint() (connection.Endpoint, error)
	Close() error
}

// overSHM and overEthernet make a rank's transport.
func overSHM(reg *registeredmem.Registry) (transport, error) {
	t, err := New(reg, Options{Secret: secret})
	return viaSHM{t}, err
}

func overEthernet(reg *registeredmem.Registry) (transport, error) {
	t, err := ethernet.New(reg, ethernet.Options{Secret: secret, Interface: "127.0.0.0/8"})
	return viaEthernet{t}, err
}

type viaSHM struct{ *Transport }

func (t viaSHM) NewEndpoint() (connection.Endpoint, error) { return t.Transport.NewEndpoint() }

type viaEthernet struct{ *ethernet.Transport }

func (t viaEthernet) NewEndpoint() (connection.Endpoint, error) { return t.Transport.NewEndpoint() }

func newBenchPair(b *testing.B, over func(*registeredmem.Registry) (transport, error)) *benchPair {
	b.Helper()
	p := &benchPair{}
	var ends [2]connection.Endpoint
	for i := range p.regs {
		reg := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{
			Rank: i, Group: [16]byte{1}, Secret: [32]byte{3}, Device: testdev.Open(b, i), Timeout: testlink.Timeout, Unmapped: true,
		}))(b)
		t := testerr.Must(over(reg))(b)
		b.Cleanup(func() { errors.Join(reg.Close(), t.Close()) })
		ends[i] = testerr.Must(t.NewEndpoint())(b)
		p.regs[i] = reg
	}
	for i := range p.conns {
		c := testerr.Must(ends[i].Connect(b.Context(), testlink.Marshal(b, ends[1-i])))(b)
		b.Cleanup(func() { c.Close() })
		p.conns[i] = c
	}
	return p
}

// memory registers memory at a rank, and imports it at the other.
func (p *benchPair) memory(b *testing.B, at int, k kind, size uint64) (own, theirs *registeredmem.Memory) {
	b.Helper()
	own = memory(b, &rank{reg: p.regs[at]}, k, size)
	return own, imported(b, &rank{reg: p.regs[1-at]}, own)
}

// inTurns returns the medians of the times that two functions take, in turns.
func inTurns(b *testing.B, both [2]func() error) (median [2]time.Duration) {
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range both {
			start := time.Now()
			testerr.Check(b, f())
			times[i] = append(times[i], time.Since(start))
		}
	}
	for i := range times {
		slices.Sort(times[i])
		median[i] = times[i][len(times[i])/2]
	}
	b.ReportMetric(0, "ns/op") // of both together
	return median
}

// BenchmarkWrite sends data and waits until they are there, in turns with Ethernet over the
// loopback interface. x-Ethernet is the bandwidth over that one's, of the medians.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []uint64{64 << 10, 1 << 20, 16 << 20, 256 << 20} {
		for _, k := range kinds {
			b.Run(fmt.Sprintf("%s, %d KiB", k, size>>10), func(b *testing.B) {
				var send [2]func() error
				for i, over := range []func(*registeredmem.Registry) (transport, error){overSHM, overEthernet} {
					p := newBenchPair(b, over)
					src, _ := p.memory(b, 0, k, size)
					_, dst := p.memory(b, 1, k, size)
					testlink.Set(b, src, testlink.Noise(size))
					send[i] = func() error {
						return errors.Join(p.conns[0].Write(dst, 0, src, 0, size), p.conns[0].Flush(b.Context()))
					}
				}
				times := inTurns(b, send)
				b.ReportMetric(float64(size)/times[0].Seconds()/1e6, "MB/s")
				b.ReportMetric(float64(size)/times[1].Seconds()/1e6, "Ethernet-MB/s")
				b.ReportMetric(times[1].Seconds()/times[0].Seconds(), "x-Ethernet")
			})
		}
	}
}

// BenchmarkRoundTrip sends data and a signal to a peer, who does the same once it sees the
// signal, in turns with Ethernet over the loopback interface.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []uint64{8, 1 << 10, 64 << 10} {
		for _, k := range kinds {
			b.Run(fmt.Sprintf("%s, %d B", k, size), func(b *testing.B) {
				times := inTurns(b, [2]func() error{
					newBenchPair(b, overSHM).volley(b, k, size), newBenchPair(b, overEthernet).volley(b, k, size),
				})
				b.ReportMetric(float64(times[0])/1e3, "p50-us")
				b.ReportMetric(float64(times[1])/1e3, "Ethernet-p50-us")
			})
		}
	}
}

// volley returns a function that makes a round trip.
func (p *benchPair) volley(b *testing.B, k kind, size uint64) func() error {
	var words, theirs, src, dst [2]*registeredmem.Memory
	for i := range p.regs {
		words[i], theirs[1-i] = p.memory(b, i, pinned, 8)
		src[i], _ = p.memory(b, i, k, size)
		_, dst[1-i] = p.memory(b, i, k, size)
	}
	send := func(i int, n uint64) error {
		return errors.Join(p.conns[i].Write(dst[i], 0, src[i], 0, size), p.conns[i].UpdateAndSync(theirs[i], 0, n-1, n))
	}
	stop := atomic.Bool{}
	wait := func(i int, n uint64) bool {
		word := (*uint64)(unsafe.Pointer(&words[i].Buffer().Bytes()[0]))
		for end := time.Now().Add(testlink.Timeout); atomic.LoadUint64(word) < n; runtime.Gosched() {
			if stop.Load() || time.Now().After(end) {
				return false
			}
		}
		return true
	}
	ended := make(chan struct{})
	begin := make(chan struct{})
	go func() {
		defer close(ended)
		<-begin
		for n := uint64(1); wait(1, n) && send(1, n) == nil; n++ {
		}
	}()
	b.Cleanup(func() {
		stop.Store(true)
		<-ended
	})
	n := uint64(0)
	return func() error {
		if n++; n == 1 {
			close(begin)
		}
		if err := send(0, n); err != nil {
			return err
		}
		if !wait(0, n) {
			return errors.New("there was no answer")
		}
		return nil
	}
}
