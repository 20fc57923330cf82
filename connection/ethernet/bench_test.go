package ethernet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// BenchmarkWrite sends 16 MiB over the loopback interface, in turns with a plain TCP
// connection that sends the same and awaits one byte. x-TCP is the bandwidth over
// that one's, of the medians.
func BenchmarkWrite(b *testing.B) {
	const size = 16 << 20
	for _, sockets := range []int{1, 2, 4} {
		for _, k := range kinds {
			b.Run(fmt.Sprintf("%v, %d sockets", k, sockets), func(b *testing.B) {
				o := loopback()
				o.Sockets = sockets
				x, y := newRank(b, 0, o), newRank(b, 1, o)
				xy, _ := connect(b, x, y)
				src, dst := memory(b, x, k, size), imported(b, x, memory(b, y, k, size))
				testlink.Set(b, src, testlink.Noise(size))
				ours, plain := inTurns(b, func() error {
					return errors.Join(xy.Write(dst, 0, src, 0, size), xy.Flush(b.Context()))
				}, plainTCP(b, size, 1))
				b.ReportMetric(size/ours.Seconds()/1e6, "MB/s")
				b.ReportMetric(size/plain.Seconds()/1e6, "TCP-MB/s")
				b.ReportMetric(plain.Seconds()/ours.Seconds(), "x-TCP")
			})
		}
	}
}

// inTurns returns the medians of the times that two functions take.
func inTurns(b *testing.B, ours, plain func() error) (time.Duration, time.Duration) {
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func() error{ours, plain} {
			start := time.Now()
			testerr.Check(b, f())
			times[i] = append(times[i], time.Since(start))
		}
	}
	b.ReportMetric(0, "ns/op") // of both together
	return median(times[0]), median(times[1])
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// plainTCP returns a function that sends size bytes over a connection that is nothing
// else, and awaits as many as the answer has.
func plainTCP(b *testing.B, size, answer int) func() error {
	ln := testerr.Must(net.Listen("tcp", "127.0.0.1:0"))(b)
	defer ln.Close()
	out := testerr.Must(net.Dial("tcp", ln.Addr().String()))(b)
	b.Cleanup(func() { out.Close() })
	in := testerr.Must(ln.Accept())(b)
	b.Cleanup(func() { in.Close() })
	go func() {
		got := make([]byte, size)
		for {
			if _, err := io.ReadFull(in, got); err != nil {
				return
			}
			in.Write(got[:answer])
		}
	}()
	// Pages that nobody wrote to would all be one, which is in the cache.
	data, back := testlink.Noise(uint64(size)), make([]byte, answer)
	return func() error {
		if _, err := out.Write(data); err != nil {
			return err
		}
		_, err := io.ReadFull(out, back)
		return err
	}
}

// BenchmarkRoundTrip sends 1 KiB and a signal to a peer, who does the same once it
// sees the signal, in turns with a plain TCP connection that sends as much both ways.
func BenchmarkRoundTrip(b *testing.B) {
	const size = 1024
	for _, k := range kinds {
		b.Run(string(k), func(b *testing.B) {
			ours, plain := inTurns(b, volley(b, k, size), plainTCP(b, size+2*message.FrameSize, size+2*message.FrameSize))
			b.ReportMetric(float64(ours)/1e3, "p50-us")
			b.ReportMetric(float64(plain)/1e3, "TCP-p50-us")
		})
	}
}

// volley returns a function that makes a round trip.
func volley(b *testing.B, k kind, size uint64) func() error {
	o := loopback()
	ranks := [2]*rank{newRank(b, 0, o), newRank(b, 1, o)}
	var conns [2]*link
	conns[0], conns[1] = connect(b, ranks[0], ranks[1])
	var words, theirs, src, dst [2]*registeredmem.Memory
	for i, r := range ranks {
		words[i], src[i] = memory(b, r, pinned, 8), memory(b, r, k, size)
	}
	for i, r := range ranks {
		theirs[i] = imported(b, r, words[1-i])
		dst[i] = imported(b, r, memory(b, ranks[1-i], k, size))
	}
	send := func(i int, n uint64) error {
		return errors.Join(conns[i].Write(dst[i], 0, src[i], 0, size), conns[i].UpdateAndSync(theirs[i], 0, n-1, n))
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
	go func() {
		defer close(ended)
		for n := uint64(1); wait(1, n) && send(1, n) == nil; n++ {
		}
	}()
	b.Cleanup(func() {
		stop.Store(true)
		<-ended
	})
	n := uint64(0)
	return func() error {
		n++
		if err := send(0, n); err != nil {
			return err
		}
		if !wait(0, n) {
			return errors.New("there was no answer")
		}
		return nil
	}
}

// BenchmarkCopies measures what a device adds to a message of 1 KiB on its way: the
// copy to the host at the sender, and at the receiver the copy to the device with
// the word behind it, stored or copied. A round trip has both twice.
func BenchmarkCopies(b *testing.B) {
	const size = 1024
	d := testdev.Open(b, 0)
	device := testerr.Must(d.Alloc(size + 8))(b)
	defer device.Close()
	host := testerr.Must(d.AllocHost(size))(b)
	defer host.Close()
	s := testerr.Must(d.NewStream())(b)
	defer s.Close()
	e := testerr.Must(d.NewEvent())(b)
	defer e.Close()
	in := func() error { return s.Copy(device, 0, host, 0, size) }
	for _, c := range []struct {
		name  string
		queue func() error
	}{
		{"to host", func() error { return s.Copy(host, 0, device, 0, size) }},
		{"to device", in},
		{"to device, word stored", func() error { return errors.Join(in(), s.WriteValue64(device, size, 1)) }},
		{"to device, word copied", func() error { return errors.Join(in(), s.Copy(device, size, host, 0, 8)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			var queued, done []time.Duration
			for b.Loop() {
				start := time.Now()
				err := c.queue()
				queued = append(queued, time.Since(start))
				testerr.Check(b, errors.Join(err, s.Record(e), e.Synchronize(b.Context())))
				done = append(done, time.Since(start))
			}
			b.ReportMetric(float64(median(queued))/1e3, "queued-us")
			b.ReportMetric(float64(median(done))/1e3, "done-us")
		})
	}
}
