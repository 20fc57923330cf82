package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// The ring's memory begins with words that one end writes and the other reads, each in
// lines of the cache of its own, and has the entries and the data after them. Counts start
// at 0 and only grow.
const (
	postedAt         = 0    // entries that are there for the receiver; the sender's
	senderSleepsAt   = 256  // 1: wake the sender once more is done; the sender sets it, the receiver takes it
	doneAt           = 512  // entries that are done; the receiver's
	receiverSleepsAt = 768  // 1: wake the receiver once more is posted; the receiver sets it, the sender takes it
	entriesAt        = 4096 // a page, so that the data are aligned
	entryCount       = 1024 // a power of two
	dataAt           = entriesAt + entryCount*8*entryWords
	alignment        = 64 // of data in the ring, for the copy engines
	pieces           = 8  // into which a ring can be divided
	maxPiece         = 512 << 10
	seals            = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	defaultRing      = pieces * maxPiece
	minRing          = 64 << 10
	maxRing          = 1 << 30
)

// ring is the shared memory of a connection as one of its ends maps it.
type ring struct {
	memory []byte
	buffer *gpu.Buffer // all of it, pinned
	data   []byte

	posted, done                 *atomic.Uint64
	senderSleeps, receiverSleeps *atomic.Uint32
}

// makeRing makes the memory of a ring for n bytes of data. The caller closes the file.
func makeRing(device *gpu.Device, n uint64) (*ring, *os.File, error) {
	fd, err := unix.MemfdCreate("mscclgo-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("making shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "ring")
	// Fallocate, so that there is no memory left to be found missing at a store. A signal of Go's
	// scheduler may interrupt it.
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Fallocate(fd, 0, 0, int64(dataAt+n))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making shared memory of %d bytes: %w", dataAt+n, err), file.Close())
	}
	r, err := mapRing(device, file)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return r, file, nil
}

// mapRing maps a ring that this rank or a peer has made, and pins it for the device.
func mapRing(device *gpu.Device, file *os.File) (*ring, error) {
	fd := int(file.Fd())
	has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || has&seals != seals {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, "map a ring", "the file is not shared memory of a fixed size: seals %#x, %v", has, err)
	}
	var about unix.Stat_t
	if err := unix.Fstat(fd, &about); err != nil {
		return nil, fmt.Errorf("asking for the size of shared memory: %w", err)
	}
	if n := about.Size - dataAt; n < minRing || n > maxRing || n%(pieces*alignment) != 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, "map a ring", "shared memory of %d bytes does not have the size of a ring", about.Size)
	}
	memory, err := unix.Mmap(fd, 0, int(about.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping shared memory of %d bytes: %w", about.Size, err)
	}
	r := &ring{memory: memory, data: memory[dataAt:]}
	r.posted, r.done = (*atomic.Uint64)(r.at(postedAt)), (*atomic.Uint64)(r.at(doneAt))
	r.senderSleeps, r.receiverSleeps = (*atomic.Uint32)(r.at(senderSleepsAt)), (*atomic.Uint32)(r.at(receiverSleepsAt))
	if r.buffer, err = device.WrapHost(memory); err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	return r, nil
}

func (r *ring) at(offset int) unsafe.Pointer { return unsafe.Pointer(&r.memory[offset]) }

// entryAt returns the offset of an entry.
func entryAt(number uint64) uint64 { return entriesAt + number%entryCount*8*entryWords }

func (r *ring) words(number uint64) *[entryWords]atomic.Uint64 {
	return (*[entryWords]atomic.Uint64)(r.at(int(entryAt(number))))
}

// put stores an entry, which is not posted yet.
func (r *ring) put(number uint64, e *entry) {
	words := r.words(number)
	for i, w := range e.encode() {
		words[i].Store(w)
	}
}

// entry reads an entry that is posted, each word once.
func (r *ring) entry(number uint64) (entry, error) {
	var read [entryWords]uint64
	words := r.words(number)
	for i := range read {
		read[i] = words[i].Load()
	}
	return decodeEntry(read, uint64(len(r.data)))
}

// piece returns the most bytes that one entry has of the ring.
func (r *ring) piece() uint64 { return min(maxPiece, uint64(len(r.data))/pieces) }

// Close unpins and unmaps the memory, which no device uses any more.
func (r *ring) Close() error {
	if err := r.buffer.Close(); err != nil {
		return err
	}
	return unix.Munmap(r.memory)
}
