package communicator

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// sizedBootstrap is the bootstrap of rank 0, in a group that has a size and nothing else.
type sizedBootstrap struct {
	fullBootstrap
	size int
}

func (b sizedBootstrap) Size() int { return b.size }
func (sizedBootstrap) Rank() int   { return 0 }

// TestPipeDefaults has pipes from and to all other ranks, in groups of several sizes.
func TestPipeDefaults(t *testing.T) {
	const kib = 1 << 10
	for _, c := range []struct {
		ranks   int
		ports   bool
		options PipeOptions
		want    uint64
	}{
		{ranks: 2, want: 128 * kib},
		{ranks: 8, want: 128 * kib},
		{ranks: 8, options: PipeOptions{PerPeer: 64}, want: 128 * kib},
		{ranks: 64, want: 128 * kib},
		{ranks: 65, want: 64 * kib},
		{ranks: 256, want: 32 * kib},
		{ranks: 256, options: PipeOptions{Size: channel.PipeSize{Slots: 2}}, want: 128 * kib},
		{ranks: 256, options: PipeOptions{PerPeer: 64}, want: 256},
		{ranks: 256, options: PipeOptions{Size: channel.PipeSize{Slots: 4096}, PerPeer: 8}, want: pipe.Align},
		{ranks: 256, options: PipeOptions{Size: channel.PipeSize{SlotBytes: 1 << 20}}, want: 1 << 20},
		{ranks: 2, ports: true, want: 128 * kib},
		{ranks: 8, ports: true, want: 128 * kib},
		{ranks: 64, ports: true, want: 64 * kib},
		{ranks: 256, ports: true, want: 16 * kib},
		{ranks: 2, options: PipeOptions{Shared: true}, want: 128 * kib},
		{ranks: 64, options: PipeOptions{Shared: true}, want: 128 * kib},
		{ranks: 256, options: PipeOptions{Shared: true}, want: 64 * kib},
		{ranks: 256, ports: true, options: PipeOptions{Shared: true}, want: 32 * kib},
		{ranks: 256, options: PipeOptions{Shared: true, PerPeer: 64}, want: 4 * kib},
	} {
		t.Run(fmt.Sprintf("%d/%v/%d/%v", c.ranks, c.ports, c.options.PerPeer, c.options.Size), func(t *testing.T) {
			comm := &Communicator{boot: sizedBootstrap{size: c.ranks}, links: slices.Repeat([]registeredmem.Transports{registeredmem.CudaIPC}, c.ranks)}
			const most = 36 << 20 // for ends
			comm.pipes = &pipePool{c: comm, pool: new(pipe.Pool), free: spans{{size: most}}}
			o := c.options
			for peer := 1; peer < c.ranks; peer++ {
				o.To, o.From = append(o.To, peer), append(o.From, peer)
			}
			o.Ports = c.ports
			p := newPipes(comm, o)
			testerr.Check(t, p.fit("lay pipes"))
			bytes := testerr.Must(p.lay("lay pipes"))(t)
			t.Logf("slots of %d bytes, %d bytes", p.size.SlotBytes, bytes)
			if got := p.size.SlotBytes; got != c.want {
				t.Errorf("slots of %d bytes, want %d", got, c.want)
			}
			if bytes != p.bytes() {
				t.Errorf("the ends take %d bytes, and %d were counted", bytes, p.bytes())
			}
			if o.Shared && o.PerPeer == 0 && bytes > most {
				t.Errorf("the shared ends take %d bytes, and there are %d", bytes, most)
			}
			plain := o.Size.SlotBytes == 0 && o.Size.Slots == 0 && o.PerPeer == 0
			if plain && bytes > mostPipeBytes {
				t.Errorf("the ends take %d bytes, more than %d", bytes, mostPipeBytes)
			}
		})
	}
}

// TestOpenSlots decodes offers that leave the bytes of slots open, and finds what all have room for.
func TestOpenSlots(t *testing.T) {
	offer := func(open bool, bytes uint64) *pipeOffer {
		return &pipeOffer{open: open, size: pipe.Size{Slots: 2, SlotBytes: bytes}}
	}
	for _, bytes := range []uint64{0, 100, 1 << 41} {
		if _, err := decodePipeOffer(pipeOfferWire.Marshal(offer(true, bytes)), 2); err == nil {
			t.Errorf("slots of %d bytes that are open: no error", bytes)
		}
		if _, err := decodePipeOffer(pipeOfferWire.Marshal(offer(false, bytes)), 2); err != nil {
			t.Errorf("slots of %d bytes, which ranks compare: %v", bytes, err)
		}
	}
	offers := []*pipeOffer{offer(false, 128), offer(true, 1024), offer(true, 512), offer(true, 1024)}
	for rank, want := range []uint64{128, 512, 512, 512} {
		if got := offers[rank].agreed(leastSlot(offers)).SlotBytes; got != want {
			t.Errorf("rank %d has slots of %d bytes, want %d", rank, got, want)
		}
	}
	if got := leastSlot(offers[:1]); got != 0 {
		t.Errorf("no rank leaves the bytes of slots open, but the least are %d", got)
	}
}
