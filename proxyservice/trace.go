package proxyservice

// #include "loop.h"
import "C"

import (
	"github.com/mscclgo/mscclgo/internal/native"
)

// traceTo has the proxy, which is not started, add what it does to a trace.
func (p *Proxy) traceTo(t *native.Trace) {
	p.trace = t
	p.loop.c.trace = (*C.native_trace)(t.Pointer())
	p.loop.c.flushing.trace = p.loop.c.trace
	p.loop.c.entries = C.uint64_t(p.ring.Handle().Internal().Entries)
}

// moved is tables.move, which it adds to the trace.
func (p *Proxy) moved(t *tables, turn turn, j *job, payload []byte) error {
	if p.trace == nil {
		return t.move(turn, j, payload)
	}
	start := native.Now()
	if err := t.move(turn, j, payload); err != nil {
		return err
	}
	to := t.ports[j.trigger.detail].semaphore.Internal()
	where := native.WhereOf(to.Channel, int(to.Rank))
	if j.trigger.kind&C.PROXY_SIGNAL != 0 {
		p.trace.Add(native.Event{
			What: native.WhatOf(native.EventHostSignal, 0), Start: start, End: native.Now(), Where: where,
			Value: to.Sent.Value(), Bytes: uint64(j.position) + 1, Extra: uint64(p.loop.c.entries),
		})
	}
	p.served(j, where)
	return nil
}

// served adds a trigger that was served to the trace.
func (p *Proxy) served(j *job, where uint64) {
	if p.trace == nil {
		return
	}
	e := native.Event{
		What: native.WhatOf(native.EventServe, uint8(j.trigger.kind)), Start: uint64(j.since), End: native.Now(), Where: where,
		Value: uint64(j.position), Extra: uint64(p.loop.c.entries),
	}
	if j.verdict != C.PROXY_USER {
		e.Bytes = uint64(C.proxy_bytes(&j.trigger))
	}
	p.trace.Add(e)
}
