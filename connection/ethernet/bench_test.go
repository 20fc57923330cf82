package ethernet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo/registeredmem"
)

// BenchmarkWrite sends 16 MiB over the loopback interface, beside a plain TCP
// connection that sends the same and awaits one byte.
func BenchmarkWrite(b *testing.B) {
	const size = 16 << 20
	b.Run("plain TCP", func(b *testing.B) { plainTCP(b, size, 1) })
	for _, sockets := range []int{1, 2, 4} {
		for _, k := range []kind{pinned, onDevice} {
			b.Run(fmt.Sprintf("%v, %d sockets", k, sockets), func(b *testing.B) {
				o := loopback()
				o.Sockets = sockets
				x, y := newRank(b, 0, o), newRank(b, 1, o)
				xy, _ := connect(b, x, y)
				src, dst := memory(b, x, k, size), imported(b, x, memory(b, y, k, size))
				b.SetBytes(size)
				for b.Loop() {
					if err := errors.Join(xy.Write(dst, 0, src, 0, size), xy.Flush(b.Context())); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// plainTCP sends size bytes over a connection that is nothing else, and awaits as
// many as the answer has.
func plainTCP(b *testing.B, size, answer int) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	out, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	go func() {
		got := make([]byte, size)
		for {
			if _, err := io.ReadFull(in, got); err != nil {
				return
			}
			in.Write(got[:answer])
		}
	}()
	data, back := make([]byte, size), make([]byte, answer)
	b.SetBytes(int64(size))
	for b.Loop() {
		if _, err := out.Write(data); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(out, back); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRoundTrip sends 1 KiB and a signal to a peer, who does the same once it
// sees the signal, beside a plain TCP connection that sends as much both ways.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("plain TCP", func(b *testing.B) { plainTCP(b, 1024+2*frameSize, 1024+2*frameSize) })
	for _, k := range []kind{pinned, onDevice} {
		b.Run(k.String(), func(b *testing.B) {
			o := loopback()
			ranks := [2]*rank{newRank(b, 0, o), newRank(b, 1, o)}
			var conns [2]*conn
			conns[0], conns[1] = connect(b, ranks[0], ranks[1])
			var words, theirs, src, dst [2]*registeredmem.Memory
			for i, r := range ranks {
				words[i], src[i] = memory(b, r, pinned, 8), memory(b, r, k, 1024)
			}
			for i, r := range ranks {
				theirs[i] = imported(b, r, words[1-i])
				dst[i] = imported(b, r, memory(b, ranks[1-i], k, 1024))
			}
			send := func(i int, n uint64) error {
				return errors.Join(conns[i].Write(dst[i], 0, src[i], 0, 1024), conns[i].UpdateAndSync(theirs[i], 0, n-1, n))
			}
			wait := func(i int, n uint64) bool {
				word := (*uint64)(unsafe.Pointer(&words[i].Buffer().Bytes()[0]))
				for end := time.Now().Add(longTimeout); atomic.LoadUint64(word) < n; runtime.Gosched() {
					if time.Now().After(end) {
						return false
					}
				}
				return true
			}
			stop, ended := atomic.Bool{}, make(chan struct{})
			go func() {
				defer close(ended)
				for n := uint64(1); wait(1, n) && !stop.Load() && send(1, n) == nil; n++ {
				}
			}()
			n := uint64(0)
			for b.Loop() {
				n++
				if err := send(0, n); err != nil || !wait(0, n) {
					b.Fatalf("no answer: %v", err)
				}
			}
			stop.Store(true)
			if err := send(0, n+1); err != nil {
				b.Fatal(err)
			}
			<-ended
		})
	}
}
