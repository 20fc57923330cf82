package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// pipeSizes are how much goes through pipes, and by how many.
type pipeSizes struct {
	message, slot uint64 // bytes
	repeats       int    // times that the message is sent
	threads       int    // of a block
	blocks        []int  // of grids, with a pipe each
	portBlocks    int    // of the grid of pipes that hosts fill
}

func (t *primitives) pipeSizes() pipeSizes {
	if emulated(t.comm) {
		return pipeSizes{message: 64 << 10, slot: 1 << 10, repeats: 2, threads: 32, blocks: []int{2, 4}, portBlocks: 2}
	}
	return pipeSizes{message: 256 << 20, slot: 512 << 10, repeats: 16, threads: 512, blocks: []int{16, 32, 128}, portBlocks: 8}
}

// messages is a message that goes from rank 0 to rank 1, which is timed and checked.
type messages struct {
	*primitives
	pipeSizes
	sent   []byte
	memory *gpu.Buffer // with the message, or where it is received
	times  *gpu.Buffer // of the blocks
}

// pipes times pipes that threads fill, beside plain copies by the same grids, and pipes that
// hosts fill.
func (t *primitives) pipes(ctx context.Context) error {
	m, err := t.newMessages()
	if err != nil {
		return err
	}
	kernel, err := t.module.Kernel("messages")
	if err != nil {
		return err
	}
	fit, err := t.comm.MaxBlocks(ctx, kernel, m.threads, 0)
	if err != nil {
		return err
	}
	for i := range m.blocks {
		m.blocks[i] = min(m.blocks[i], fit)
	}
	for _, blocks := range slices.Compact(m.blocks) {
		if err := m.copies(ctx, blocks); err != nil {
			return err
		}
		for _, buffer := range []*gpu.Buffer{nil, m.memory} {
			if err := m.throughPipes(ctx, blocks, communicator.PipeOptions{Buffer: buffer}); err != nil {
				return err
			}
		}
	}
	for _, buffer := range []*gpu.Buffer{nil, m.memory} {
		if err := m.throughPipes(ctx, min(m.portBlocks, fit), communicator.PipeOptions{Buffer: buffer, Ports: true}); err != nil {
			return err
		}
	}
	return nil
}

func (t *primitives) newMessages() (*messages, error) {
	m := &messages{primitives: t, pipeSizes: t.pipeSizes()}
	m.sent = make([]byte, m.message)
	rand.NewChaCha8([32]byte{}).Read(m.sent) // alike on all ranks
	var err error
	if m.memory, err = gpu.Upload(t.comm.Device(), m.sent); err != nil {
		return nil, err
	}
	t.closers = append(t.closers, m.memory.Close)
	m.times, err = t.alloc(16 * uint64(slices.Max(append(m.blocks, m.portBlocks))))
	return m, err
}

// copies times a plain copy to the peer.
func (m *messages) copies(ctx context.Context, blocks int) error {
	channels, err := m.comm.MemoryChannels(ctx, m.memory, communicator.MemoryChannelOptions{})
	if err != nil {
		return err
	}
	m.closers = append(m.closers, channels.Close)
	handle := channels.HandleOf(0, max(1-m.comm.Rank(), 0))
	return m.time(ctx, fmt.Sprintf("plain copy, %d blocks", blocks), "copies", 1, blocks, handle)
}

// throughPipes times a pipe each way for each block.
func (m *messages) throughPipes(ctx context.Context, blocks int, o communicator.PipeOptions) error {
	name := fmt.Sprintf("pipes, %d blocks", blocks)
	if o.Ports {
		name = fmt.Sprintf("pipes by ports, %d blocks", blocks)
	}
	if o.Buffer != nil {
		name += ", zero copy"
	} else {
		name += ", slots of " + bytesize.Format(m.slot)
	}
	rank := m.comm.Rank()
	if rank < 2 {
		o.To, o.From = []int{1 - rank}, []int{1 - rank}
	}
	o.PerPeer, o.Size = blocks, channel.PipeSize{SlotBytes: m.slot}
	var err error
	if o.Service, err = m.comm.ProxyService(ctx, proxyservice.ServiceOptions{}); err != nil {
		return err
	}
	m.closers = append(m.closers, o.Service.Close)
	pipes, err := m.comm.Pipes(ctx, o)
	if err != nil {
		return err
	}
	m.closers = append(m.closers, pipes.Close, o.Service.Close) // after an error; the service goes first
	if err := m.time(ctx, name, "messages", 2, blocks, pipes.Set(), uint32(rank), m.memory); err != nil {
		return err
	}
	// In this order, as the peer's service may still have to do with the pipes.
	return errors.Join(o.Service.Close(), m.comm.Barrier(ctx), pipes.Close())
}

// time times a kernel of the first `ranks` ranks that takes a message from rank 0 to rank 1,
// and checks what arrives. Its last arguments are the message's size, how often it goes, and
// where each block stores when it began and ended.
func (m *messages) time(ctx context.Context, name, kernel string, ranks, blocks int, args ...any) error {
	args = append(args, m.message, uint32(m.repeats), m.times)
	err := m.poison(ctx)
	if err == nil {
		err = m.launch(ctx, kernel, ranks, gpu.Blocks(blocks, m.threads), func(int) []any { return args })
	}
	if err == nil {
		err = m.comm.Barrier(ctx) // rank 0 has ended too
	}
	if err == nil {
		err = m.check(name)
	}
	times := make([]struct{ Begin, End uint64 }, blocks)
	if err == nil {
		err = gpu.CopyOut(times, m.times)
	}
	if err != nil {
		return err
	}
	begin, end := times[0].Begin, times[0].End
	for _, t := range times {
		begin, end = min(begin, t.Begin), max(end, t.End)
	}
	return m.report(name, m.message, float64(m.message)*float64(m.repeats)/float64(max(end, begin+1)-begin), "GB/s")
}

// poison overwrites the message at rank 1.
func (m *messages) poison(ctx context.Context) error {
	if m.comm.Rank() != 1 {
		return nil
	}
	if err := m.stream.Fill(m.memory, 0, 0xff, m.message); err != nil {
		return err
	}
	return m.comm.Synchronize(ctx, m.stream)
}

// check returns an error if rank 1 has received anything else than rank 0 sent.
func (m *messages) check(name string) error {
	if m.comm.Rank() != 1 {
		return nil
	}
	got := make([]byte, m.message)
	if err := gpu.CopyOut(got, m.memory); err != nil || bytes.Equal(got, m.sent) {
		return err
	}
	wrong := 0
	for i := range got {
		if got[i] != m.sent[i] {
			wrong++
		}
	}
	return fmt.Errorf("%s: rank 1 has received %d bytes of %d wrong", name, wrong, len(got))
}
