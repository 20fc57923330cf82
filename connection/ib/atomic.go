package ib

// #include "post.h"
import "C"

import (
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/verbs"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// add posts a fetch-and-add, in the order of writes, or a message for the peer's process.
func (c *conn) add(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	const op = "ib: add"
	k, err := c.remoteWord(op, dst, dstOffset)
	if err != nil {
		return err
	}
	q := c.queues[0]
	word := k.theirs(dst, q)
	if c.adds {
		return c.until(op, func() C.int {
			return C.ib_increase(c.c, &word, C.uint64_t(dstOffset), C.uint64_t(value))
		})
	}
	what := entry{doing: C.IB_ADDITION, there: k.part(dst, dstOffset), n: 8}
	if err := c.follow(op, &word, &what); err != nil {
		return err
	}
	err = c.sendMessage(op, what, message{dst.ID(), messageAdd, dstOffset, value})
	if err == nil {
		c.out.places[(c.out.sent-1)%messages], c.out.added = addedPlace{true, what.there.place}, c.out.sent
	}
	return err
}

// exchange waits for all that was posted before, and then until the card has swapped the word
// for the value, or the peer's process has, and stores what it was.
func (c *conn) exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	const op = "ib: exchange"
	k, err := c.remoteWord(op, theirs, offset)
	if err != nil {
		return err
	}
	if _, err := c.own(op, own); err != nil {
		return err
	}
	if err := c.awaitAll(op); err != nil {
		return err
	}
	what := entry{doing: C.IB_EXCHANGE, there: k.part(theirs, offset), n: 8}
	word := k.theirs(theirs, c.queues[0])
	swap := c.swap
	if !c.adds {
		swap = c.askToSwap
	}
	old, err := swap(op, theirs, word, what, value)
	if err != nil {
		return err
	}
	if _, err := c.t.change(message{own.ID(), messageStore, ownOffset, old}); err != nil {
		return mscclgo.Errorf(kindOfChange(err, mscclgo.ErrInvalid), op, "storing what the word was: %w", err)
	}
	return nil
}

// awaitAll waits until all that was posted is done, and what was read is here, where the host
// may store next.
func (c *conn) awaitAll(op string) error {
	for _, q := range c.queues {
		if err := c.fence(op, q); err != nil {
			return err
		}
		if err := c.await(op, q, q.posted); err != nil {
			return err
		}
	}
	return c.until(op, func() C.int { return C.ib_landed(c.c, c.c.landing.newest) })
}

// swap has the card compare the word and swap it until it has found the word as it was last
// seen, and returns what it was. The first guess is 0, as in a lock that is free.
func (c *conn) swap(op string, m *registeredmem.Memory, word C.ib_memory, what entry, value uint64) (uint64, error) {
	q := c.queues[0]
	var since time.Time // of the second try
	for seen := uint64(0); ; seen = c.scratch.old() {
		if err := c.reserve(op, q, 1); err != nil {
			return 0, err
		}
		w := verbs.Work{
			Opcode: verbs.Swap, Size: 8, Local: oldAt, LocalKey: c.scratch.mrs[q.nic.index].LocalKey(),
			Remote: uint64(word.base) + what.there.offset, RemoteKey: uint32(word.key), Compare: seen, Value: value,
		}
		if err := c.request(op, q, what, w); err != nil {
			return 0, err
		}
		if err := c.await(op, q, q.posted); err != nil {
			return 0, err
		}
		if c.scratch.old() == seen {
			C.ib_changed(c.c, &word)
			return seen, nil
		}
		if since.IsZero() {
			since = time.Now()
		} else if waited := time.Since(since); waited > c.t.o.Timeout {
			return 0, mscclgo.Errorf(mscclgo.ErrTimeout, op, "others changed the word at offset %d of %v between all tries for %v; nothing was exchanged", what.there.offset, m, waited.Round(time.Millisecond))
		}
	}
}

// askToSwap has the peer's process exchange the word, and reads what it was in the peer's inbox.
func (c *conn) askToSwap(op string, m *registeredmem.Memory, word C.ib_memory, what entry, value uint64) (uint64, error) {
	q := c.queues[0]
	if err := c.follow(op, &word, &what); err != nil {
		return 0, err
	}
	if err := c.sendMessage(op, what, message{m.ID(), messageExchange, what.there.offset, value}); err != nil {
		return 0, err
	}
	slot := (c.out.sent - 1) % messages
	if err := c.awaitApplied(op, q); err != nil {
		return 0, err
	}
	if err := c.reserve(op, q, 1); err != nil {
		return 0, err
	}
	w := verbs.Work{
		Local: oldAt, Remote: oldsAt + 8*uint64(slot), Size: 8, Opcode: verbs.Read,
		LocalKey: c.scratch.mrs[q.nic.index].LocalKey(), RemoteKey: c.inboxKey,
	}
	if err := c.request(op, q, entry{doing: C.IB_OLD}, w); err != nil {
		return 0, err
	}
	if err := c.await(op, q, q.posted); err != nil {
		return 0, err
	}
	return c.scratch.old(), nil
}
