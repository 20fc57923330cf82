package proxyservice

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// ServiceOptions are what the owner of a [ProxyService] may choose.
type ServiceOptions struct {
	Options
	// RingSize is the number of triggers that the ring holds, a power of two. 0
	// means fifo.DefaultSize.
	RingSize int
	// Watch bounds the waits of kernels for room in the ring and for flushes.
	Watch devicecode.Watch
	// Direct is how many bytes a put may have for the kernel's thread to make it
	// itself where it can. 0 means channel.DefaultDirect.
	Direct channel.Direct
	// Inline is how many bytes a put may have to travel with its trigger over a
	// connection that offers that (Connection.WriteBytes), so that the host need not fetch
	// them from the device. The ring takes about so many bytes of pinned memory for each
	// of its triggers; see [fifo.Ring]. 0 means DefaultInline, less than 0 none.
	Inline int
	// Handler serves triggers of the user's own, of the kinds from
	// fifo.FirstUserKind. nil makes them a failure.
	Handler Handler
	// MaxConnections bounds the connections of the channels. Each takes 8 bytes of
	// pinned memory. 0 means 1024.
	MaxConnections int
}

// DefaultInline is a size that a thread stores in less time than a copy engine takes to
// begin. A ring of the default size takes 576 KiB of pinned memory for it.
const DefaultInline = 1 << 10

// Limits of a service, from the ids in a trigger.
const (
	MaxMemories   = 1 << 16
	MaxSemaphores = 1 << 16
)

const (
	defaultConnections = 1024
	maxConnections     = 1 << 16
)

// ProxyService is a proxy that moves data and signals peers for port channels. It
// knows memories and semaphores by id and makes the channels. All its methods may
// be called from any goroutine, also while it runs.
//
// Its ring is the only pinned memory that it takes.
//
// Triggers are served in the order of the ring. A queue of the CUDA driver holds
// about a thousand operations; who gives it one more waits there until the device
// has done some, and a proxy then serves nobody else. Channels that run so far ahead
// of their peers that others must not wait for them want a service of their own.
type ProxyService struct {
	*Proxy
	ring    *fifo.Ring
	options ServiceOptions
	server  server

	mu         sync.Mutex
	memories   []*registeredmem.Memory // server.memories points to it
	ids        map[*registeredmem.Memory]uint16
	ports      []port // server.ports points to it
	semaphores map[*semaphore.Host2Device]uint16
	lines      map[*connection.Connection]*line
	closed     bool
}

// port is what a channel's id stands for.
type port struct {
	semaphore *semaphore.Host2Device
	line      *line
}

// New makes a service for the kernels of a device. It is not started.
//
// Errors: those of [fifo.New] and [NewProxy]; ErrInvalid for a number of
// connections that cannot be.
func New(dev *gpu.Device, o ServiceOptions) (*ProxyService, error) {
	const op = "proxyservice: make a service"
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections
	}
	if o.MaxConnections < 0 || o.MaxConnections > maxConnections {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d connections asked, 1 to %d are possible", o.MaxConnections, maxConnections).At(o.Rank, mscclgo.NoRank)
	}
	if o.Direct == 0 {
		o.Direct = channel.DefaultDirect
	}
	switch {
	case o.Inline == 0:
		o.Inline = DefaultInline
	case o.Inline < 0:
		o.Inline = 0
	}
	ring, err := fifo.New(dev, fifo.Options{Size: o.RingSize, Words: o.MaxConnections, Payload: o.Inline, Watch: o.Watch})
	if err != nil {
		return nil, err
	}
	s := &ProxyService{
		ring: ring, options: o,
		ids:        map[*registeredmem.Memory]uint16{},
		semaphores: map[*semaphore.Host2Device]uint16{},
		lines:      map[*connection.Connection]*line{},
	}
	s.server.ring, s.server.user = ring, o.Handler
	s.publish()
	w := work{serve: s.server.serve, goOn: s.server.goOn, failed: s.server.failed, flushFailed: s.server.flushFailed}
	if s.Proxy, err = newProxy(ring, w, o.Options); err != nil {
		return nil, errors.Join(err, ring.Close())
	}
	s.server.counts = s.counts
	return s, nil
}

// publish lets the proxy's goroutine see what is known. The caller holds mu, or
// nobody else has s. Slots beyond a slice's length are written before it.
func (s *ProxyService) publish() {
	memories, ports := s.memories, s.ports
	s.server.memories.Store(&memories)
	s.server.ports.Store(&ports)
}

// Fifo gives the ring, for kernels that push triggers of the user's own.
func (s *ProxyService) Fifo() devicecode.Fifo { return s.ring.Handle() }

// AddMemory gives a memory, this rank's or a peer's, its id in the service: the
// same each time. The memory stays the caller's and must outlive the service.
//
// Errors: ErrInvalid when the service is closed or has MaxMemories; ErrSystem when
// host memory is short.
func (s *ProxyService) AddMemory(m *registeredmem.Memory) (uint16, error) {
	const op = "proxyservice: add a memory"
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.ids[m]; ok {
		return id, nil
	}
	switch {
	case m == nil:
		return 0, s.invalid(op, "the memory is nil")
	case s.closed:
		return 0, s.invalid(op, "the service is closed")
	case len(s.memories) == MaxMemories:
		return 0, s.invalid(op, "the service has %d; make another service", MaxMemories)
	}
	if err := s.loop.addMemory(native.RangeOf(m)); err != nil {
		return 0, s.wrap(op, err)
	}
	id := uint16(len(s.memories))
	s.memories = append(s.memories, m)
	s.ids[m] = id
	s.publish()
	return id, nil
}

// AddSemaphore gives a semaphore its id in the service, which is that of all
// channels that signal with it: the same each time. The semaphore and its
// connection stay the caller's and must outlive the service's running.
//
// Errors: ErrInvalid when the service is closed, has MaxSemaphores, or has
// ServiceOptions.MaxConnections and this one's is another; ErrSystem when host
// memory is short.
func (s *ProxyService) AddSemaphore(sem *semaphore.Host2Device) (uint16, error) {
	const op = "proxyservice: add a semaphore"
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.semaphores[sem]; ok {
		return id, nil
	}
	switch {
	case sem == nil:
		return 0, s.invalid(op, "the semaphore is nil")
	case s.closed:
		return 0, s.invalid(op, "the service is closed")
	case len(s.ports) == MaxSemaphores:
		return 0, s.invalid(op, "the service has %d; make another service", MaxSemaphores)
	}
	l := s.lines[sem.Connection()]
	if l == nil {
		words, _ := s.ring.Words()
		if len(s.lines) == len(words) {
			return 0, s.invalid(op, "the service has %d connections; raise ServiceOptions.MaxConnections", len(words))
		}
		l = &line{conn: sem.Connection(), index: len(s.lines), done: &words[len(s.lines)]}
		if err := s.loop.addLine(native.PathOf(l.conn), l.conn.Transport(), l.done); err != nil {
			return 0, s.wrap(op, err)
		}
		s.lines[sem.Connection()] = l
	}
	if err := s.loop.addPort(l.index, native.CountOf(sem)); err != nil {
		return 0, s.wrap(op, err)
	}
	id := uint16(len(s.ports))
	s.ports = append(s.ports, port{semaphore: sem, line: l})
	s.semaphores[sem] = id
	s.publish()
	return id, nil
}

// BasePortChannel makes a channel of a semaphore whose puts name the memories by
// the ids that AddMemory gives.
//
// Errors: those of AddSemaphore.
func (s *ProxyService) BasePortChannel(sem *semaphore.Host2Device) (*channel.BasePortChannel, error) {
	id, err := s.AddSemaphore(sem)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	index := s.ports[id].line.index
	s.mu.Unlock()
	_, first := s.ring.Words()
	return channel.NewBasePortChannel(s.ring, sem, id, first+gpu.Ptr(8*index), s.options.Direct), nil
}

// PortChannel makes a channel of a semaphore between the peer's memory dst and
// this rank's src. It takes no memory of the device or pinned beside the
// semaphore's.
//
// Errors: those of AddSemaphore, AddMemory and [channel.NewPortChannel].
func (s *ProxyService) PortChannel(sem *semaphore.Host2Device, dst, src *registeredmem.Memory) (*channel.PortChannel, error) {
	base, err := s.BasePortChannel(sem)
	if err != nil {
		return nil, err
	}
	to, err := s.AddMemory(dst)
	if err != nil {
		return nil, err
	}
	from, err := s.AddMemory(src)
	if err != nil {
		return nil, err
	}
	return channel.NewPortChannel(base, channel.NumberedMemory{Memory: dst, ID: to}, channel.NumberedMemory{Memory: src, ID: from})
}

// Close stops the service, without waiting for more than what is in the ring,
// and frees the ring. Kernels that use it must have ended. It is safe to call
// twice.
//
// Errors: those of [Proxy.Stop], after a second.
func (s *ProxyService) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	return errors.Join(s.end(ctx, true), s.ring.Close())
}

// closePatience bounds the drain of Close.
const closePatience = time.Second

func (s *ProxyService) wrap(op string, err error) error {
	return mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(s.options.Rank, mscclgo.NoRank)
}

func (s *ProxyService) invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(s.options.Rank, mscclgo.NoRank)
}

// tables are what the proxy's goroutine looks ids up in.
type tables struct {
	memories atomic.Pointer[[]*registeredmem.Memory]
	ports    atomic.Pointer[[]port]
}
