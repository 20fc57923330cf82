package ib

// #include "post.h"
import "C"

import "github.com/mscclgo/mscclgo/registeredmem"

// store posts an RDMA write of the value, in the order of writes. Cards write 8 aligned bytes
// whole, in one transaction of PCI Express. Soft-RoCE copies them one by one.
func (c *conn) store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	const op = "ib: store"
	k, err := c.remoteWord(op, dst, dstOffset)
	if err != nil {
		return err
	}
	if err := c.awaitAdded(op, k.place+dstOffset, 8); err != nil {
		return err
	}
	q := c.queues[0]
	word := k.theirs(dst, q)
	return c.until(op, func() C.int {
		return C.ib_store(c.c, &word, C.uint64_t(dstOffset), C.uint64_t(value))
	})
}
