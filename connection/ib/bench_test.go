package ib

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// word gives the last word of pinned memory as the host polls it.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[len(b)-8])) }

// BenchmarkWriteLatency is half the time of a ping-pong of 64 byte writes whose
// last word the host polls, as ib_write_lat measures.
func BenchmarkWriteLatency(b *testing.B) {
	x, y := newPair(b, Options{})
	var wg sync.WaitGroup
	sides := [2]*side{x, y}
	var out, in [2][]byte
	var send [2]func() error
	for i, s := range sides {
		src, dst := s.memory(b, 64, true), sides[1-i].memory(b, 64, true)
		to := s.imported(b, dst)
		out[i], in[1-i] = src.Buffer().Bytes(), dst.Buffer().Bytes()
		send[i] = func() error { return s.conn.Write(to, 0, src, 0, 64) }
	}
	b.ResetTimer()
	for i := range sides {
		wg.Go(func() {
			for k := uint64(1); k <= uint64(b.N); k++ {
				post := func() {
					*word(out[i]) = k
					if err := send[i](); err != nil {
						b.Error(err)
					}
				}
				if i == 0 {
					post()
				}
				for n, end := 0, time.Now().Add(patience); atomic.LoadUint64(word(in[i])) < k; n++ {
					if n%10_000 == 9_999 && (b.Failed() || time.Now().After(end)) {
						b.Error("no answer")
						return
					}
				}
				if i == 1 {
					post()
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/way")
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
