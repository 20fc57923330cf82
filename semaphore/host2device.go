package semaphore

import (
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Host2DeviceBytes is the device memory of one end, aligned to its size: what
// the peer writes in a 32-byte sector of its own, then what this rank's kernels
// count.
const Host2DeviceBytes = 64

// Where the words of an end lie in its memory.
const (
	fromHost    = 0  // signals by the peer's host
	fromKernels = 8  // signals that the peer's kernels stored themselves
	portState   = 32 // a devicecode.PortState: this rank's alone
)

var _ [Host2DeviceBytes - portState]byte = [unsafe.Sizeof(devicecode.PortState{})]byte{}

// Host2Device is one end of a semaphore whose signals a host sends, behind what
// its connection wrote before, and kernels wait for.
type Host2Device struct {
	conn       *connection.Connection
	words      *gpu.Buffer
	peer       *registeredmem.Memory
	peerOffset uint64
	watch      devicecode.Watch

	mu   sync.Mutex    // goroutines take turns
	sent *native.Count // which a thread in C may raise as well
}

// NewHost2Device makes an end that signals over a connection. words is its own
// memory, [Host2DeviceBytes] aligned to as many; the peer's is as large and lies
// at an offset of peer, memory of the rank that the connection leads to. It
// zeroes its own, so both ends must be made before either is used. All stays the
// caller's and must outlive the semaphore; watch bounds the waits of kernels.
//
// Errors: ErrInvalid for memory of another size or alignment, or a range outside
// the peer's.
func NewHost2Device(conn *connection.Connection, words *gpu.Buffer, peer *registeredmem.Memory, peerOffset uint64, watch devicecode.Watch) (*Host2Device, error) {
	const op = "semaphore: make a Host2Device"
	if words.Size() != Host2DeviceBytes || words.Ptr()%Host2DeviceBytes != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d bytes at %#x given, an end has %d aligned to as many", words.Size(), uint64(words.Ptr()), Host2DeviceBytes)
	}
	if err := checkPeer(op, peer, peerOffset, Host2DeviceBytes); err != nil {
		return nil, err
	}
	if err := gpu.CopyIn(words, make([]byte, Host2DeviceBytes)); err != nil {
		return nil, err
	}
	return &Host2Device{conn: conn, words: words, peer: peer, peerOffset: peerOffset, watch: watch, sent: native.NewCount()}, nil
}

// checkPeer gives the error of a range of the peer's memory that cannot hold an
// end of n bytes, a power of two.
func checkPeer(op string, peer *registeredmem.Memory, offset, n uint64) error {
	if offset%n != 0 || offset > peer.Size() || n > peer.Size()-offset {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peer's end is %d bytes at offset %d of %v; it must be inside, at a multiple of its size", n, offset, peer).At(peer.Registry().Rank(), peer.Rank())
	}
	return nil
}

// Signal lets one wait of the peer's kernels go on, once all that the connection
// was given before is done there. It does not wait. Any goroutine.
//
// Errors: those of the connection's UpdateAndSync.
func (s *Host2Device) Signal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent.Claim()
	if err := s.conn.UpdateAndSync(s.peer, s.peerOffset+fromHost, sent, sent+1); err != nil {
		s.sent.Release(sent)
		return err
	}
	s.sent.Release(sent + 1)
	return nil
}

func init() { native.CountOf = func(s any) native.SemaphoreInfo { return s.(*Host2Device).info() } }

// info returns what a thread in C needs to signal as [Host2Device.Signal] does.
func (s *Host2Device) info() native.SemaphoreInfo {
	return native.SemaphoreInfo{Sent: s.sent, Peer: native.RangeOf(s.peer), Offset: s.peerOffset + fromHost}
}

// Connection gives the connection that signals go over.
func (s *Host2Device) Connection() *connection.Connection { return s.conn }

// Peer gives the rank that signals go to.
func (s *Host2Device) Peer() int { return s.peer.Rank() }

// Handle gives what kernels use.
func (s *Host2Device) Handle() devicecode.Host2DeviceSemaphore {
	return devicecode.Host2DeviceSemaphore{
		Inbound:  s.words.Ptr() + fromHost,
		Expected: s.State() + gpu.Ptr(unsafe.Offsetof(devicecode.PortState{}.Expected)),
		Watch:    s.watch,
	}
}

// State gives the address of the devicecode.PortState in the end's memory, for a
// port channel.
func (s *Host2Device) State() gpu.Ptr { return s.words.Ptr() + portState }

// PeerSent gives the address of the word in which the peer counts signals that
// this rank's kernels store themselves, or 0 where the peer's memory is not
// mapped here.
func (s *Host2Device) PeerSent() gpu.Ptr {
	if b := s.peer.Buffer(); b != nil {
		return b.Ptr() + gpu.Ptr(s.peerOffset+fromKernels)
	}
	return 0
}
