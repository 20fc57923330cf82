package ib

import (
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// readSize is the most bytes of one request. What is lost of a read's answer has all behind
// it sent again, and a device counts such attempts until the request is done: with 16 MiB in
// one, both ways at once, Soft-RoCE (Linux 6.1) gives up.
const readSize = 1 << 20

// ReadyToRead reports whether there is room for all requests that a read and a mark may
// make. It is false more often than need be: while there are writes under way, from whose
// source the read might take the place, or which it might overlap at the peer.
func (c *conn) ReadyToRead(n uint64) bool {
	const op = "ib: look for room"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.usable(op) != nil {
		return true
	}
	first := c.queues[0]
	for _, q := range c.queues {
		if q.done < q.posted && c.poll(op, q) != nil {
			return true
		}
		if q.done < q.wrote {
			return false
		}
	}
	if !c.adds {
		if applied, err := c.applied(op, c.out.changes); !applied {
			return err != nil
		}
	}
	const others = 2 // for a mark
	return first.room() > others && n/first.perRead() < uint64(first.room()-others)
}

// perRead returns the most bytes of one read.
func (q *queue) perRead() uint64 { return min(q.max, readSize) }

// Read posts RDMA reads on the first queue pair, which has made all updates. Writes of other
// queue pairs that it overlaps, and those that still send what it overwrites here, are done
// first. Updates behind it wait for its end, as do writes that it overlaps, since only a
// fence would order a read with what follows it.
func (c *conn) Read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "ib: read"
	c.mu.Lock()
	defer c.mu.Unlock()
	from, err := c.remote(op, src)
	if err != nil {
		return err
	}
	to := c.t.registered(dst.ID())
	if to == nil { // it was closed meanwhile
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%v is closed", dst)
	}
	q := c.queues[0]
	what := entry{doing: "read", memory: src, offset: srcOffset, n: n, local: dst, localOffset: dstOffset, read: true}
	if err := c.awaitConflicts(op, q, &what); err != nil {
		return err
	}
	if err := c.awaitApplied(op, q); err != nil {
		return err
	}
	localKey, remoteKey := to.mrs[q.nic.index].LocalKey(), from.keys[q.peer.nic]
	c.work = c.work[:0]
	for at := uint64(0); at < n; {
		size := min(q.perRead(), n-at)
		if err := c.reserve(op, q, 1); err != nil {
			return err
		}
		w := verbs.Work{
			Local: to.base + dstOffset + at, Remote: from.base + srcOffset + at, Size: uint32(size),
			LocalKey: localKey, RemoteKey: remoteKey, Opcode: verbs.Read,
		}
		at += size
		w.ID, w.Flags = q.add(what, at == n)
		c.work = append(c.work, w)
	}
	q.waitFor = q.posted
	if to.device {
		c.landing.newest, c.landing.key, c.landing.at = q.posted, localKey, to.base+dstOffset+n-1
	}
	return c.post(op, q)
}

// awaitApplied waits until the peer's process has applied all updates that are messages,
// which a read must see.
func (c *conn) awaitApplied(op string, q *queue) error {
	if c.adds {
		return nil
	}
	for i := 0; ; i++ {
		if done, err := c.applied(op, c.out.changes); done || err != nil {
			return err
		}
		if c.out.asked > 0 {
			if err := c.await(op, q, c.out.asked); err != nil {
				return err
			}
		}
		pause(i)
	}
}

// landing is what is known of reads into memory of this rank's device. The card announces
// their end in host memory, which may come before the bytes are in the device's: they are
// once the card has read there again, as it does for a write from there.
type landing struct {
	newest  uint64 // all these reads are requests below
	key     uint32 // where the newest has put its last byte
	at      uint64
	pushed  uint64 // for the reads below, such a write was posted
	until   uint64 // which is done when all requests below are
	settled uint64 // the reads below have landed
}

// landed reports whether the reads below a number, which are done, are in the device's
// memory. If that is not known it posts a write of their last byte, which waits for
// nothing, to a byte of the peer's inbox that nobody reads.
func (c *conn) landed(op string, number uint64) (bool, error) {
	l, q := &c.landing, c.queues[0]
	if l.pushed > l.settled && q.done < l.until {
		if err := c.poll(op, q); err != nil {
			return false, err
		}
	}
	if q.done >= l.until {
		l.settled = l.pushed
	}
	if number <= l.settled {
		return true, nil
	}
	if err := c.usable(op); err != nil {
		return false, err
	}
	if number <= l.pushed || q.room() == 0 {
		return false, nil
	}
	w := verbs.Work{Local: l.at, Remote: dumpAt, Size: 1, LocalKey: l.key, RemoteKey: c.inboxKey, Opcode: verbs.Write}
	w.ID, w.Flags = q.add(entry{doing: "write behind a read"}, true)
	l.pushed, l.until = number, q.posted
	c.work = append(c.work[:0], w)
	return false, c.post(op, q)
}
