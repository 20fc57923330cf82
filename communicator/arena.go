package communicator

import (
	"errors"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// arena cuts small pieces from large allocations, because an allocation has
// at least Info.MemoryGranularity (2 MiB on NVIDIA GPUs). With a registry, its
// slabs are memory that peers can import.
type arena struct {
	dev      *gpu.Device
	registry *registeredmem.Registry // nil: for this rank alone

	mu       sync.Mutex
	slabs    []*slab
	launches inside.LaunchGroup // hears of the slabs, or nil
	closed   bool
}

const (
	slabBytes  = 256 << 10 // at least; more where an allocation takes more anyhow
	pieceAlign = 128
)

// slab is one allocation and the free ranges in it, by offset.
type slab struct {
	buf  *gpu.Buffer
	mem  *registeredmem.Memory
	free spans
}

// piece is a range of a slab.
type piece struct {
	slab *slab
	span
}

// buffer returns the piece's first n bytes.
func (p piece) buffer(n uint64) (*gpu.Buffer, error) { return p.slab.buf.Slice(p.offset, n) }

// alloc allocates n bytes, first fit, rounded up to the alignment. It fails once the
// arena is closed.
func (a *arena) alloc(n uint64) (piece, error) {
	n = (n + pieceAlign - 1) / pieceAlign * pieceAlign
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return piece{}, mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: allocate", closedText)
	}
	for _, s := range a.slabs {
		if one, ok := s.free.take(n); ok {
			return piece{s, one}, nil
		}
	}
	s, err := a.grow(n)
	if err != nil {
		return piece{}, err
	}
	if n < s.buf.Size() {
		s.free = spans{{n, s.buf.Size() - n}}
	}
	return piece{s, span{0, n}}, nil
}

// grow adds a slab of at least n bytes.
func (a *arena) grow(n uint64) (*slab, error) {
	buf, err := a.dev.Alloc(max(n, slabBytes, a.dev.Info().MemoryGranularity))
	if err != nil {
		return nil, err
	}
	s := &slab{buf: buf}
	if a.registry != nil {
		if s.mem, err = a.registry.Register(buf); err != nil {
			return nil, errors.Join(err, buf.Close())
		}
	}
	a.slabs = append(a.slabs, s)
	if a.launches != nil {
		a.launches.Has(uint64(buf.Ptr()), buf.Size())
	}
	return s, nil
}

// groups has launches that are given memory of the arena known as the group's.
func (a *arena) groups(launches inside.LaunchGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.launches = launches
	for _, s := range a.slabs {
		launches.Has(uint64(s.buf.Ptr()), s.buf.Size())
	}
}

// free frees a piece.
func (a *arena) free(p piece) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.slab.free.give(p.span)
}

func (a *arena) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var errs []error
	for _, s := range a.slabs {
		if s.mem != nil {
			errs = append(errs, s.mem.Close())
		}
		errs = append(errs, s.buf.Close())
	}
	a.slabs = nil
	return errors.Join(errs...)
}
