package pipe

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/registeredmem"
)

const (
	// MaxLot is how many slots of a lot a message borrows at most.
	MaxLot = layout.MaxPipeLot
	// MaxLots is how many lots a pool has at most.
	MaxLots = 1 << 12
	// mostLotBytes is what lots have fewer bytes than in all: kernels count these in 32 bits, by Align.
	mostLotBytes = Align << 32
	poolHeader   = uint64(unsafe.Sizeof(layout.PipePool{}))
)

// Pool is memory of this rank for the ends of pipes, with lots at its end: pieces that messages
// under way borrow for slots; see [Size].
type Pool struct {
	memory *registeredmem.Memory
	head   uint64
	layout layout.PipePool

	mu       sync.Mutex
	returned uint64 // the count in the memory, which kernels only read
}

// NewPool makes a memory of this rank a pool with so many lots, of so many bytes each. The memory
// stays the caller's, and must outlive the pool. No kernel may use it yet.
//
// Errors: ErrInvalid if the memory is not this rank's, closed, or too small for the lots, and for
// wrong lots.
func NewPool(m *registeredmem.Memory, lots int, lotBytes uint64) (*Pool, error) {
	const op = "pipes: make a pool of pipes"
	invalid := func(format string, args ...any) error {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...)
	}
	switch {
	case m == nil || !m.Local() || m.Buffer() == nil:
		return nil, invalid("the memory is nil, closed or not this rank's")
	case uint64(m.Buffer().Ptr())%Align != 0:
		return nil, invalid("%v begins at %#x, which is not a multiple of %d", m, uint64(m.Buffer().Ptr()), Align)
	case lots < 0 || lots > MaxLots:
		return nil, invalid("%d lots; 0 to %d are allowed", lots, MaxLots)
	case lotBytes == 0 || lotBytes%Align != 0:
		return nil, invalid("lots of %d bytes; the size must be a multiple of %d", lotBytes, Align)
	}
	begin, end, ok := layPool(m.Size(), lots, lotBytes)
	if !ok {
		return nil, invalid("%d lots of %d bytes do not fit in %v", lots, lotBytes, m)
	}
	p := &Pool{memory: m, head: begin, layout: layout.PipePool{
		Lots: uint64(lots), First: end, LotBytes: lotBytes,
	}}
	if err := gpu.CopyIn(m.Buffer(), []layout.PipePool{p.layout}); err != nil {
		return nil, err
	}
	words, err := m.Buffer().Slice(poolHeader, 8*uint64(lots))
	if err != nil {
		return nil, err
	}
	free := make([]uint64, lots)
	for i := range free {
		free[i] = 1
	}
	return p, gpu.CopyIn(words, free)
}

// layPool returns from where to where ends lie in memory of so many bytes, or false if the lots do not fit.
func layPool(bytes uint64, lots int, lotBytes uint64) (begin, end uint64, ok bool) {
	begin = (poolHeader + 8*uint64(lots) + Align - 1) / Align * Align
	size := bytes / Align * Align
	over, all := bits.Mul64(uint64(lots), lotBytes)
	if over != 0 || all >= mostLotBytes || begin > size || all > size-begin {
		return 0, 0, false
	}
	return begin, size - all, true
}

// Room returns how many bytes there are for ends in a pool of memory of so many bytes: 0 if the lots
// do not fit.
func Room(bytes uint64, lots int, lotBytes uint64) uint64 {
	begin, end, _ := layPool(bytes, lots, lotBytes)
	return end - begin
}

// Memory returns the memory, in which ends lie from byte Begin to byte End.
func (p *Pool) Memory() *registeredmem.Memory { return p.memory }

// Begin returns the offset in the memory from which on ends may lie, a multiple of Align.
func (p *Pool) Begin() uint64 { return p.head }

// End returns the offset in the memory of the first lot, before which ends lie.
func (p *Pool) End() uint64 { return p.layout.First }

// LotSlots returns how many slots of so many bytes a message borrows, for Size.LotSlots: 0, so
// that it borrows none, if so many slots, or two, are more than a lot has, or than MaxLot. All ranks
// whose lots have one size get the same.
func (p *Pool) LotSlots(slots int, slotBytes uint64) int {
	fit := min(p.layout.LotBytes/slotBytes, MaxLot)
	if fit < uint64(slots) || fit < 2 {
		return 0
	}
	return 1 << (bits.Len64(fit) - 1)
}

// Stats returns how the pool is used, but for what ends take. Kernels may be under way: then it is about so.
//
// Errors: ErrInvalid if the memory is closed.
func (p *Pool) Stats() (channel.PipePoolStats, error) {
	now := []layout.PipePool{{}}
	if err := gpu.CopyOut(now, p.memory.Buffer()); err != nil {
		return channel.PipePoolStats{}, err
	}
	return channel.PipePoolStats{
		Bytes: p.memory.Size(), ForEnds: p.End() - p.Begin(),
		Lots: now[0].Lots, Lent: now[0].Lent - now[0].Returned, Asked: now[0].Asked, Refused: now[0].Refused,
	}, nil
}

// giveBack gives back the lot at an offset, which no kernel has any longer. Kernels may have others meanwhile: a
// lot's word is its holder's to write.
func (p *Pool) giveBack(offset uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	word, err := p.memory.Buffer().Slice(poolHeader+8*((offset-p.layout.First)/p.layout.LotBytes), 8)
	if err != nil {
		return err
	}
	count, err := p.memory.Buffer().Slice(uint64(unsafe.Offsetof(p.layout.Returned)), 8)
	if err != nil {
		return err
	}
	if err := gpu.CopyIn(word, []uint64{1}); err != nil {
		return err
	}
	p.returned++
	return gpu.CopyIn(count, []uint64{p.returned})
}
