package ib

// #include "post.h"
import "C"

import (
	"github.com/mscclgo/mscclgo/registeredmem"
)

// readyToRead is Ready for a read and a mark. It is false more often than need be: while there are
// writes under way, from whose source the read might take the place, or which it might overlap at
// the peer. The caller holds mu.
func (c *conn) readyToRead(op string, n uint64) bool {
	first := c.queues[0]
	for _, q := range c.queues {
		if q.done < q.posted && c.poll(op, q) != nil {
			return true
		}
		if q.done < q.wrote {
			return false
		}
	}
	if c.parked() && C.ib_unpark(c.c) != 0 {
		return c.usable(op) != nil
	}
	if !c.adds {
		if applied, err := c.applied(op, c.out.changes); !applied {
			return err != nil
		}
	}
	const others = 2 // for a mark
	return c.pieces(n, true)+others <= uint64(first.room())
}

// read posts RDMA reads on the first queue pair, which has made all updates. Before it, writes of
// other queue pairs end if the read overlaps them, or overwrites here what they still send.
// Updates behind it wait for its end, as do writes that it overlaps, since only a fence would
// order a read with what follows it.
func (c *conn) read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	const op = "ib: read"
	from, err := c.remote(op, src)
	if err != nil {
		return err
	}
	to, err := c.own(op, dst)
	if err != nil {
		return err
	}
	c.knowOwn(to)
	q := c.queues[0]
	if err := c.awaitApplied(op, q); err != nil {
		return err
	}
	here, there := to.own(q), from.theirs(src, q)
	for at := uint64(0); at < n; {
		size := min(n-at, uint64(C.ib_fits(c.c, 0, true)))
		if err := c.until(op, func() C.int {
			return C.ib_read(c.c, &here, C.uint64_t(dstOffset+at), &there, C.uint64_t(srcOffset+at), C.uint64_t(size))
		}); err != nil {
			return err
		}
		at += size
	}
	return nil
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
