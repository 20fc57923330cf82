package ib

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// word gives the last word of pinned memory as the host polls it.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[len(b)-8])) }

// BenchmarkWriteLatency is half the time of a ping-pong of 64 byte writes whose
// last word the host polls, as ib_write_lat measures: the median, which what else the
// machine does changes little. The ends take turns, so one goroutine plays both.
func BenchmarkWriteLatency(b *testing.B) {
	x, y := newPair(b, Options{})
	sides := [2]*side{x, y}
	var out, in [2][]byte
	var send [2]func() error
	for i, s := range sides {
		src, dst := s.memory(b, 64, true), sides[1-i].memory(b, 64, true)
		to := s.imported(b, dst)
		out[i], in[1-i] = src.Buffer().Bytes(), dst.Buffer().Bytes()
		send[i] = func() error { return s.conn.Write(to, 0, src, 0, 64) }
	}
	rounds := make([]time.Duration, b.N)
	b.ResetTimer()
	start := time.Now()
	for k := range rounds {
		for i := range sides {
			*word(out[i]) = uint64(k + 1)
			if err := send[i](); err != nil {
				b.Fatal(err)
			}
			for n := 0; atomic.LoadUint64(word(in[1-i])) <= uint64(k); n++ {
				if n%10_000 == 9_999 && time.Since(start) > patience {
					b.Fatal("it does not arrive")
				}
			}
		}
		now := time.Now()
		rounds[k], start = now.Sub(start), now
	}
	slices.Sort(rounds)
	b.ReportMetric(float64(rounds[b.N/2].Nanoseconds())/2, "ns/way")
}

// BenchmarkWriteBandwidth keeps the queue full, as ib_write_bw does.
func BenchmarkWriteBandwidth(b *testing.B) {
	for _, size := range []uint64{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := newPair(b, Options{Depth: 128})
			src, dst := x.memory(b, size, true), x.imported(b, y.memory(b, size, true))
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := x.conn.Write(dst, 0, src, 0, size); err != nil {
					b.Fatal(err)
				}
			}
			x.flush(b)
		})
	}
}

// BenchmarkAtomicLatency is one update and its flush, as ib_atomic_lat measures.
func BenchmarkAtomicLatency(b *testing.B) {
	x, y := newPair(b, Options{})
	dst := x.imported(b, y.memory(b, 8, true))
	for k := uint64(0); b.Loop(); k++ {
		if err := x.conn.UpdateAndSync(dst, 0, k, k+1); err != nil {
			b.Fatal(err)
		}
		x.flush(b)
	}
}
