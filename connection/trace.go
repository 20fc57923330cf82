package connection

import (
	"math/bits"

	"github.com/mscclgo/mscclgo/internal/native"
)

// clock returns the time for a trace, or 0 where there is none.
func (c *Connection) clock() uint64 {
	if c.trace == nil {
		return 0
	}
	return native.Now()
}

// traced adds to the trace what was begun at start.
func (c *Connection) traced(kind native.EventKind, start, bytes, value uint64) {
	if c.trace == nil {
		return
	}
	c.trace.Add(native.Event{
		What: native.WhatOf(kind, uint8(bits.TrailingZeros32(uint32(c.transport)))), Start: start, End: native.Now(),
		Where: native.WhereOf(0, c.peer), Bytes: bytes, Value: value,
	})
}
