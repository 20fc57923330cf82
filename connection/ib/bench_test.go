package ib

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// word returns the last word of pinned memory as the host polls it.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[len(b)-8])) }

// BenchmarkWriteLatency is half the time of a ping-pong of 64 byte writes whose
// last word the host polls, as ib_write_lat measures: each end has a thread of its
// own, and the median counts, which what else the machine does changes little. What
// the clock takes is left out: in a virtual machine it is microseconds.
func BenchmarkWriteLatency(b *testing.B) {
	x, y := newPair(b, Options{})
	sides := [2]*side{x, y}
	var out, in [2]*uint64
	var send [2]func() error
	for i, s := range sides {
		src, dst := s.memory(b, 64, true), sides[1-i].memory(b, 64, true)
		to := s.imported(b, dst)
		out[i], in[1-i] = word(src.Buffer().Bytes()), word(dst.Buffer().Bytes())
		send[i] = func() error { return s.conn.Write(to, 0, src, 0, 64) }
	}
	end := time.Now().Add(patience)
	put := func(i int, value uint64) error {
		*out[i] = value
		return send[i]()
	}
	await := func(i int, value uint64) error {
		for n := 1; atomic.LoadUint64(in[i]) < value; n++ {
			if n%1_000_000 == 0 && time.Now().After(end) {
				return fmt.Errorf("write %d does not arrive", value)
			}
		}
		return nil
	}
	rounds := uint64(b.N)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var err error
		for k := uint64(1); k <= rounds && err == nil; k++ {
			if err = await(1, k); err == nil {
				err = put(1, k)
			}
		}
		failed <- err
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	took := make([]time.Duration, 0, rounds)
	b.ResetTimer()
	start := time.Now()
	for k := uint64(1); k <= rounds; k++ {
		testerr.Check(b, errors.Join(put(0, k), await(0, k)))
		now := time.Now()
		took = append(took, now.Sub(start))
		start = now
	}
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(float64((took[rounds/2]-clockCost()).Nanoseconds())/2, "ns/way")
}

// clockCost is what reading the clock takes, about.
func clockCost() time.Duration {
	const reads = 1000
	start := time.Now()
	end := start
	for range reads {
		end = time.Now()
	}
	return end.Sub(start) / reads
}

// BenchmarkWriteBandwidth keeps the queue full, as ib_write_bw does.
func BenchmarkWriteBandwidth(b *testing.B) {
	for _, size := range []uint64{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := newPair(b, Options{Depth: 128})
			src, dst := x.memory(b, size, true), x.imported(b, y.memory(b, size, true))
			b.SetBytes(int64(size))
			for b.Loop() {
				testerr.Check(b, x.conn.Write(dst, 0, src, 0, size))
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
		testerr.Check(b, x.conn.UpdateAndSync(dst, 0, k, k+1))
		x.flush(b)
	}
}
