package proxyservice

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// ServiceOptions configure a [ProxyService]. The zero value is right for most uses.
type ServiceOptions struct {
	Options
	// RingSize is the number of triggers that the ring holds, a power of two. 0
	// means fifo.DefaultSize.
	RingSize int
	// Watch bounds the waits of kernels for room in the ring and for flushes. Its
	// zero value means what it means in fifo.Options.
	Watch devicecode.Watch
	// Direct is the size in bytes up to which a kernel's thread makes a put itself
	// where it can. 0 means channel.DefaultDirect; and channel.HostOnly on emulated devices where races
	// are looked for or schedules explored, since mistakes that show over a NIC show there only.
	Direct channel.Direct
	// Inline is the size in bytes up to which a put's bytes travel with its trigger
	// over a connection that takes them (connection.Connection.WriteBytes), so that
	// the host need not fetch them from the device. The ring takes about as many bytes
	// of pinned memory for each of its triggers; see [fifo.Ring]. 0 means
	// 1 KiB, less than 0 none.
	Inline int
	// Handler serves the user's own triggers, of the kinds from fifo.FirstUserKind.
	// nil makes them a failure.
	Handler Handler
	// MaxConnections is the most connections that the channels use. Each takes 16
	// bytes of pinned memory and 32 of the device's. 0 means 1024.
	MaxConnections int
}

// defaultInline is a size that a thread stores in less time than a copy engine takes
// to begin. A ring of the default size takes 576 KiB of pinned memory for it.
const defaultInline = 1 << 10

// Limits of a service, from the ids in a trigger.
const (
	maxMemories   = 1 << 16
	maxSemaphores = 1 << 16
)

const (
	defaultConnections = 1024
	maxConnections     = 1 << 16
)

// The sizes of what a connection has in the ring's memory, in words.
const (
	progressWords = int(unsafe.Sizeof(layout.PortProgress{}) / 8)
	queueWords    = int(unsafe.Sizeof(layout.PortQueue{}) / 8)
)

// ProxyService is a proxy that moves data and signals peers for port channels. It
// assigns memories and semaphores their ids and makes the channels. All its methods
// may be called from any goroutine, also while it runs.
//
// Once the group of a channel's connection has failed (see package communicator), what kernels ask
// of the channel is taken from the ring and dropped. Handler serves its own triggers all the same.
//
// Its ring is the only pinned memory that it takes.
//
// Triggers of the channels of one connection are served in the order of the ring. Operations
// that Handler or others queue on the connection meanwhile have their places in that order. A
// kernel's thread may put by itself where the peer's memory is mapped. Such a put comes behind
// the triggers of the same channel, and of no other. There is no order between connections, nor
// between a connection and the triggers for Handler: a kernel that needs one flushes.
//
// So a peer that is slow or silent holds up only triggers for it. Where its transport has no
// room, the connection's triggers wait in a backlog, with the bytes that came with them, and the
// others are served. The backlog holds 1024 triggers. Kernels push as many more than the
// transport has taken, and then wait before they take an entry of the ring.
//
// The ring stops all the same while Handler does not return. It stops for a full queue of the
// CUDA driver, which holds about a thousand operations on mapped memory: a proxy that adds one
// more waits until this rank's own device has done some. And it stops for kernels that push
// triggers of channels without the channels' handles, more than the backlog holds.
type ProxyService struct {
	*Proxy
	ring    *fifo.Ring
	words   []atomic.Uint64 // of the ring: a layout.PortProgress for each connection
	pinned  gpu.Ptr         // the first of them as kernels see it
	options ServiceOptions
	naming  func(number uint32) string // or nil; see inside.Telling

	mu         sync.Mutex
	known      tables // Proxy.tables points to a copy
	memories   map[*registeredmem.Memory]uint16
	semaphores map[*semaphore.Host2Device]uint16
	links      map[*connection.Connection]*link
	reserved   int // semaphores and connections that will be added; see inside.Room
	kept       int // memories that will be added; see inside.Room
	closed     bool

	freeing sync.Mutex // held by Close from when the proxy has ended
}

// New returns a service for the kernels of a device. It is not started.
//
// Errors: as for [fifo.New] and [NewProxy]; ErrInvalid for a negative
// ServiceOptions.MaxConnections.
func New(dev *gpu.Device, o ServiceOptions) (*ProxyService, error) {
	const op = "proxyservice: new service"
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultConnections
	}
	if o.MaxConnections < 0 || o.MaxConnections > maxConnections {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "ServiceOptions.MaxConnections is %d, not 1 to %d", o.MaxConnections, maxConnections).At(o.Rank, mscclgo.NoRank)
	}
	if o.Direct == 0 {
		o.Direct = channel.DefaultDirect
		if race.Enabled() {
			o.Direct = channel.HostOnly
		}
	}
	switch {
	case o.Inline == 0:
		o.Inline = defaultInline
	case o.Inline < 0:
		o.Inline = 0
	}
	if o.Inline > fifo.MaxPayload {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Inline is %d, more than %d", o.Inline, fifo.MaxPayload).At(o.Rank, mscclgo.NoRank)
	}
	ring, err := fifo.New(dev, fifo.Options{
		Size: o.RingSize, Words: progressWords * o.MaxConnections, DeviceWords: queueWords * o.MaxConnections, Payload: o.Inline, Watch: o.Watch,
	})
	if err != nil {
		return nil, err
	}
	firstUser := fifo.FirstUserKind
	if o.Handler == nil {
		firstUser = math.MaxUint8 + 1
	}
	p, err := newProxy(ring, o.Handler, firstUser, o.Options)
	if err != nil {
		return nil, errors.Join(err, ring.Close())
	}
	s := &ProxyService{
		Proxy: p, ring: ring, options: o,
		memories:   map[*registeredmem.Memory]uint16{},
		semaphores: map[*semaphore.Host2Device]uint16{},
		links:      map[*connection.Connection]*link{},
	}
	s.words, s.pinned = ring.Internal().Words()
	s.publish()
	return s, nil
}

// publish lets the proxy's goroutine see what is known, before the loop's tables name
// it. The caller holds mu, or nobody else has s. Slots beyond a slice's length are
// written before it.
func (s *ProxyService) publish() {
	t := s.known
	s.tables.Store(&t)
}

// Fifo returns the ring, for kernels that push the user's own triggers. A flush of a port channel waits for what
// the channel's connection has queued, and not for these triggers, though they are in the same ring. A handler
// answers its kernel in memory that the kernel polls.
func (s *ProxyService) Fifo() devicecode.Fifo { return s.ring.Handle() }

// AddMemory returns the id of a memory, this rank's or a peer's, in the service: the
// same each time. The memory stays the caller's and must outlive the service. Before the service has
// connections, any memory can be added. If no connection of its group follows, [channel.NewPortChannel]
// refuses it, and a trigger that names it fails the service.
//
// Errors: ErrInvalid when the memory is nil or in a registry for another device, or the service has connections and none
// of them is in the memory's registry, or is closed or has 65,536 memories.
func (s *ProxyService) AddMemory(m *registeredmem.Memory) (uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m == nil {
		return 0, s.invalid(opAddMemory, "the memory is nil")
	}
	return s.addMemory(m)
}

const opAddMemory = "proxyservice: add a memory"

// addMemory is AddMemory of one that is not nil. The caller holds mu.
func (s *ProxyService) addMemory(m *registeredmem.Memory) (uint16, error) {
	id, known := s.memories[m]
	if known && !s.closed {
		return id, nil
	}
	if of := m.Registry().Device(); of != s.ring.Device() {
		return 0, s.invalid(opAddMemory, "%v is in a registry for %v, the service is for %v%s", m, of, s.ring.Device(), native.Twice(of, s.ring.Device()))
	}
	if in := m.Registry().Internal().Instance(); len(s.links) > 0 && !slices.ContainsFunc(s.known.links, func(l *link) bool { return l.Connection.Internal().Path().Registry == in }) {
		return 0, s.invalid(opAddMemory, "%v is in another registry than the service's connections, which cannot move it; take memory of their registry, or add a semaphore of a connection in the memory's", m)
	}
	if err := s.roomForMemories(1); err != nil {
		return 0, err
	}
	id = uint16(len(s.known.memories))
	s.memories[m] = id
	s.known.memories = append(s.known.memories, m)
	s.publish()
	s.loop.addMemory(m)
	return id, nil
}

// roomForMemories returns the error of a service that has no room for so many more, or is closed. The caller
// holds mu.
func (s *ProxyService) roomForMemories(n int) error {
	switch {
	case s.closed:
		return s.invalid(opAddMemory, "the service is closed")
	case len(s.known.memories)+s.kept+n > maxMemories:
		return s.invalid(opAddMemory, "the service has %d, of at most %d; make another service", len(s.known.memories)+s.kept, maxMemories)
	}
	return nil
}

// AddSemaphore returns the id of a semaphore in the service, which all channels that
// signal with it share: the same each time. The semaphore and its connection stay
// the caller's. The service must be stopped before they are closed.
//
// Errors: ErrInvalid when the semaphore is nil, or the service is closed, has
// 65,536 semaphores, or has ServiceOptions.MaxConnections and the semaphore's connection
// is not one of them.
func (s *ProxyService) AddSemaphore(sem *semaphore.Host2Device) (uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sem == nil {
		return 0, s.invalid(opAddSemaphore, "the semaphore is nil")
	}
	return s.addSemaphore(sem)
}

const opAddSemaphore = "proxyservice: add a semaphore"

// addSemaphore is AddSemaphore of one that is not nil. The caller holds mu.
func (s *ProxyService) addSemaphore(sem *semaphore.Host2Device) (uint16, error) {
	if id, known := s.semaphores[sem]; known && !s.closed {
		return id, nil
	}
	l := s.links[sem.Connection()]
	if err := s.room(l == nil); err != nil {
		return 0, err
	}
	if l == nil {
		l = &link{Connection: sem.Connection(), number: len(s.links)}
		if l.limited() {
			l.taken = &s.words[l.number*progressWords+1]
		}
		l.waiting = s.loop.addConnection(l.Connection, &s.words[l.number*progressWords], l.taken)
		s.links[l.Connection] = l
		s.known.links = append(s.known.links, l)
	}
	id := uint16(len(s.known.ports))
	s.semaphores[sem] = id
	info := sem.Internal()
	name := strconv.Itoa(int(id))
	if s.naming != nil && info.Channel != 0 {
		name = s.naming(info.Channel)
	}
	s.known.ports = append(s.known.ports, port{link: l, semaphore: sem, signal: info.Signal, name: name})
	s.publish()
	s.loop.addPort(l.number, info)
	return id, nil
}

// room returns the error of a service that has no room for one more semaphore, or for its connection if that is
// new, or is closed. The caller holds mu.
func (s *ProxyService) room(connects bool) error {
	switch {
	case s.closed:
		return s.invalid(opAddSemaphore, "the service is closed")
	case len(s.known.ports)+s.reserved >= maxSemaphores:
		return s.invalid(opAddSemaphore, "the service has %d; make another service", maxSemaphores)
	case connects && len(s.links)+s.reserved >= s.options.MaxConnections:
		return s.invalid(opAddSemaphore, "the service has %d connections; raise ServiceOptions.MaxConnections", s.options.MaxConnections)
	}
	return nil
}

// BasePortChannel returns a channel of a semaphore whose puts, gets and stores name the
// memories by the ids that AddMemory returns.
//
// Errors: as for [ProxyService.AddSemaphore].
func (s *ProxyService) BasePortChannel(sem *semaphore.Host2Device) (*channel.BasePortChannel, error) {
	id, err := s.AddSemaphore(sem)
	if err != nil {
		return nil, err
	}
	l := s.tables.Load().ports[id].link
	progress, queue := s.pinned+gpu.Ptr(8*progressWords*l.number), gpu.Ptr(0)
	if l.limited() {
		queue = s.ring.Internal().DeviceWords() + gpu.Ptr(8*queueWords*l.number)
	}
	return channel.NewBasePortChannel(s.ring, sem, id, progress, queue, s.options.Direct), nil
}

// PortChannel returns a channel of a semaphore between the peer's memory dst and
// this rank's src. It takes no device or pinned memory of its own.
//
// Errors: as for [ProxyService.AddSemaphore], [ProxyService.AddMemory] and [channel.NewPortChannel].
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
	return channel.NewPortChannel(base, dst, src, to, from)
}

// Close stops the service once it has served what is in the ring, and frees the
// ring: later, where a handler has not returned. Kernels that use it must have ended.
// It does nothing on nil, and may be called again, also meanwhile: every call returns once that is
// done, the first of them with the error.
//
// Errors: as for [Proxy.Stop], after a second. After ErrInvalid, the service goes on.
func (s *ProxyService) Close() error {
	if s == nil {
		return nil
	}
	var r *run
	var err error
	if !s.Internal().Closed() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if r, err = s.end(ctx, true); r != nil && r.itself() {
			return err
		}
	}
	s.freeing.Lock()
	defer s.freeing.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	switch {
	case closed:
		return nil
	case r != nil:
		go func() {
			<-r.done
			s.free()
		}()
		return err
	}
	return errors.Join(err, s.free())
}

// free frees the ring, once the proxy's goroutine has ended.
func (s *ProxyService) free() error {
	for _, l := range s.tables.Load().links {
		l.forget()
	}
	return s.ring.Close()
}

func (s *ProxyService) invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(s.options.Rank, mscclgo.NoRank)
}
