package ib

import (
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Store posts an RDMA write of the value, in the order of writes. Cards write 8 aligned bytes
// whole, in one transaction of PCI Express. Soft-RoCE copies them one by one.
func (c *conn) Store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	const op = "ib: store"
	c.mu.Lock()
	defer c.mu.Unlock()
	k, err := c.remoteWord(op, dst, dstOffset)
	if err != nil {
		return err
	}
	q := c.queues[0]
	what := entry{doing: "store", memory: dst, offset: dstOffset, n: 8}
	if err := c.awaitConflicts(op, q, &what); err != nil {
		return err
	}
	if err := c.reserve(op, q, 1); err != nil {
		return err
	}
	c.work = c.work[:0]
	w := verbs.Work{
		Remote: k.base + dstOffset, RemoteKey: k.keys[q.peer.nic], Size: 8,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), Opcode: verbs.Write,
	}
	w.ID, w.Flags = q.add(what, false)
	w.Local = c.scratch.putValue(w.ID%q.depth, value) // the request before it in the slot is done
	c.work = append(c.work, w)
	c.changed(k, touched{true, w.RemoteKey, w.Remote})
	return c.post(op, q)
}
