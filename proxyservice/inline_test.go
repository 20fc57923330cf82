package proxyservice_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// inlinePut is one of a list of kernel puts.
type inlinePut struct{ dst, src, bytes uint64 }

// putAll has blocks of one thread each make a list of puts, signal and flush, and waits
// for their signals at the peer.
func (d *duo) putAll(t *testing.T, ranks [2]*rank, list []inlinePut, blocks int) {
	t.Helper()
	device := testerr.Must(gpu.Upload(ranks[0].dev, list))(t)
	defer device.Close()
	results := ranks[0].alloc(t, uint64(4*blocks))
	ranks[0].launch(t, "putAll", blocks, 1, d.channels[0].Handle(), device, uint32(len(list)), results)
	ranks[0].wait(t)
	for block, r := range read[uint32](t, results, blocks) {
		if r != 0 {
			t.Fatalf("block %d: %v (%v)", block, devicecode.WaitResult(r), ranks[0].service.Err())
		}
	}
	if got := ranks[1].act(t, d.channels[1], wait, 0, 0, 0, blocks); got != devicecode.WaitDone {
		t.Fatal(got)
	}
}

// fill fills what a rank sends with random bytes.
func (d *duo) fill(t *testing.T, size uint64) []byte {
	t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	testerr.Check(t, gpu.CopyIn(d.send[0], data))
	return data
}

// TestInline puts small sizes, sizes around the limit and large ones, at all alignments
// and over each other. The last put must win. The test compares every byte, and how many
// puts carried their bytes.
func TestInline(t *testing.T) {
	for name, limit := range map[string]int{"1 KiB": 0, "100 bytes": 100, "more than Ethernet takes": 5000, "none": -1} {
		t.Run(name, func(t *testing.T) {
			ranks := newFarPair(t, proxyservice.ServiceOptions{Inline: limit, Options: proxyservice.Options{Count: true}})
			most := map[int]uint64{0: 1024, 100: 100, 5000: 4096, -1: 0}[limit]
			const size = 1 << 16
			d := newDuo(t, ranks, size)
			if h := d.channels[0].Handle(); h.Internal().InlineLimit != most {
				t.Fatalf("the channel's limit is %d", h.Internal().InlineLimit)
			}
			data := d.fill(t, size)
			want := make([]byte, size)
			random := rand.New(rand.NewPCG(1, most))
			total, inlined := uint64(0), uint64(0)
			for round := range 6 {
				var list []inlinePut
				for i := range uint64(60) {
					n := i
					switch random.IntN(4) {
					case 0:
						n = most + i%5 - min(most, 2)
					case 1:
						n = random.Uint64N(most + 1)
					case 2:
						if i%5 == 0 {
							n = random.Uint64N(size / 2)
						}
					}
					p := inlinePut{random.Uint64N(min(size-n, 3000)), random.Uint64N(size - n), n}
					list = append(list, p)
					copy(want[p.dst:], data[p.src:p.src+n])
					total += n
					if n > 0 && n <= most {
						inlined++
					}
				}
				d.putAll(t, ranks, list, 1)
				testcmp.Equal(t, fmt.Sprintf("the bytes of round %d", round), read[byte](t, d.receive[1], size), want)
				if t.Failed() {
					return
				}
			}
			s := ranks[0].service.Snapshot()
			if got := s.Triggers[layout.PortPut|layout.PortInline]; got != inlined {
				t.Errorf("triggers by kind: %v, want %d with bytes", s.Triggers, inlined)
			}
			if s.Bytes[registeredmem.Ethernet] != total {
				t.Errorf("%v bytes were put, want %d", s.Bytes, total)
			}
		})
	}
}

// TestInlineKinds puts with a signal, and with a flush, where the puts carry their bytes.
func TestInlineKinds(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{Options: proxyservice.Options{Count: true}})
	d := newDuo(t, ranks, 4096)
	data := d.fill(t, 4096)
	for i, a := range []Action{putWithSignal, putWithSignalAndFlush} {
		at := uint64(100 * i)
		ranks[0].must(t, d.channels[0], a, at, at+3, 77)
		ranks[1].must(t, d.channels[1], wait, 0, 0, 0)
		testcmp.Equal(t, fmt.Sprintf("the bytes of action %d", a), read[byte](t, d.receive[1], 4096)[at:at+77], data[at+3:at+80])
	}
	const inline = layout.PortPut | layout.PortSignal | layout.PortInline
	if s := ranks[0].service.Snapshot(); s.Triggers[inline] != 1 || s.Triggers[inline|layout.PortFlush] != 1 || s.Flushes.Count != 1 {
		t.Errorf("triggers by kind: %v, %d flushes", s.Triggers, s.Flushes.Count)
	}
}

// TestInlineAnswers has two kernels answer each other. Each writes its buffer anew for
// each put.
func TestInlineAnswers(t *testing.T) {
	for _, words := range []int{1, 256, 257} {
		pingPong(t, newFarPair(t, proxyservice.ServiceOptions{RingSize: 2}), 1, words, 30)
	}
}

// TestFullRingOfInline has many blocks put into a ring that is always full.
func TestFullRingOfInline(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{RingSize: 4, Inline: 64})
	const each, count = 61, 400
	d := newDuo(t, ranks, each*count)
	data := d.fill(t, each*count)
	list := make([]inlinePut, count)
	for i := range list {
		list[i] = inlinePut{uint64(i * each), uint64(i * each), each}
	}
	d.putAll(t, ranks, list, 32)
	testcmp.Equal(t, "the bytes", read[byte](t, d.receive[1], each*count), data)
}

// TestNoInline makes a channel over a connection that takes no bytes of the host's.
func TestNoInline(t *testing.T) {
	d := newDuo(t, newPair(t, hostOnly), 64)
	if h := d.channels[0].Handle(); h.Internal().InlineLimit != 0 {
		t.Errorf("the channel's limit is %d", h.Internal().InlineLimit)
	}
}

// TestWrongInline checks that wrong triggers of inlined puts make the group fail.
func TestWrongInline(t *testing.T) {
	const kind = layout.PortPut | layout.PortInline
	for _, c := range []struct {
		name    string
		trigger raw
		parts   []string
	}{
		{"no bytes", raw{kind: kind}, []string{"channel 0", "says that 0 came with it"}},
		{"too many", raw{c: 1025, kind: kind}, []string{"channel 0", "says that 1025 came with it", "takes 1 to"}},
		{"size beyond all", raw{c: ^uint64(0), kind: kind}, []string{"2^48"}},
		{"begin too far", raw{b: 16, c: 8, kind: kind}, []string{"channel 0", "at 16"}},
		{"a source", raw{b: 1 << 48, c: 8, kind: kind}, []string{"channel 0", "at 281474976710656"}},
		{"unknown dst", raw{a: 9 << 48, c: 8, kind: kind}, []string{"channel 0", "memory has number 9"}},
		{"dst of this rank", raw{a: 1 << 48, c: 8, kind: kind}, []string{"channel 0", "memory"}},
		{"dst outside", raw{a: 4090, c: 8, kind: kind}, []string{"channel 0", "rank 0, peer 1", "8 bytes at offset 4090"}},
		{"unknown channel", raw{c: 8, detail: 1, kind: kind}, []string{"channel has number 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wrongTrigger(t, newFarPair(t, proxyservice.ServiceOptions{}), c.trigger, c.parts...)
		})
	}
}

// TestInlineOutside checks that the host reports a small put that is out of range.
func TestInlineOutside(t *testing.T) {
	for name, c := range map[string]struct {
		dst, src uint64
		part     string
	}{
		"dst":            {4090, 0, "offset 4090"},
		"src":            {0, 4090, "offset 4090"},
		"dst far beyond": {1 << 48, 0, "2^48"},
		"src far beyond": {0, ^uint64(0), "2^48"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := newFarPair(t, proxyservice.ServiceOptions{})
			d := newDuo(t, ranks, 4096)
			if got := ranks[0].act(t, d.channels[0], putWithSignalAndFlush, c.dst, c.src, 8, 1); got != devicecode.WaitAborted {
				t.Errorf("the put ended with %v", got)
			}
			ranks[0].expectFailure(t, mscclgo.ErrInvalid, c.part)
		})
	}
}

// TestInlineIntoClosed puts into a memory that the peer has closed.
func TestInlineIntoClosed(t *testing.T) {
	ranks := newFarPair(t, proxyservice.ServiceOptions{})
	r := ranks[0]
	theirs := ranks[1].register(t, ranks[1].alloc(t, 64))
	data := testerr.Must(theirs.MarshalBinary())(t)
	dst := testerr.Must(r.reg.Import(t.Context(), data))(t)
	c := testerr.Must(r.service.PortChannel(r.newSemaphore(t, r.conn), dst, r.register(t, r.alloc(t, 64))))(t)
	r.must(t, c, putWithSignalAndFlush, 0, 0, 64)
	testerr.Check(t, theirs.Close())
	if got := r.act(t, c, putWithSignalAndFlush, 0, 0, 64, 1); got != devicecode.WaitAborted {
		t.Errorf("the put ended with %v", got)
	}
	r.expectFailure(t, mscclgo.ErrRemote, "peer 1")
}
