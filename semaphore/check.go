package semaphore

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// checkWords returns an error unless b is memory for an end of n bytes, a power of
// two.
func checkWords(op string, b *gpu.Buffer, n uint64) error {
	switch {
	case b == nil:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory of an end is nil")
	case b.Size() != n || uint64(b.Ptr())%n != 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory of an end is %d bytes at %#x; it must be %d bytes, aligned to their number", b.Size(), uint64(b.Ptr()), n)
	}
	return nil
}

// checkWatch returns an error unless a watch ends waits. Kernels read its status without a look
// whether there is one.
func checkWatch(op string, w devicecode.Watch) error {
	switch {
	case w.Status == 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Watch.Status is 0; it must be the address of a devicecode.GroupStatus")
	case w.Timeout == 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Watch.Timeout is 0; kernels would not wait")
	}
	return native.CheckWatch(op, uint64(w.Status), w.Timeout)
}

// checkPeer returns an error unless there is a connection and an end of n bytes, a
// power of two, lies at the offset of the peer's memory.
func checkPeer(op string, conn *connection.Connection, peer *registeredmem.Memory, offset, n uint64) error {
	switch {
	case conn == nil:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the connection is nil")
	case peer == nil:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peer's memory is nil")
	case peer.Registry().Internal().Instance() != conn.Internal().Path().Registry || peer.Rank() != conn.Internal().Path().Peer:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v of the registry of rank %d is not memory of rank %d, to which the connection leads, in the connection's registry", peer, peer.Registry().Rank(), conn.Internal().Path().Peer).At(conn.Internal().Path().Rank, conn.Internal().Path().Peer)
	case offset%n != 0 || offset > peer.Size() || n > peer.Size()-offset:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the peer's end is %d bytes at offset %d of %v; it must lie inside, at a multiple of its size", n, offset, peer).At(peer.Registry().Rank(), peer.Rank())
	}
	return nil
}
