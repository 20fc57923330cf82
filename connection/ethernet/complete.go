package ethernet

// post posts a completion for what the socket has applied, or acknowledges it at once
// if the stream is idle.
func (s *socket) post() {
	if !s.applied && !s.copies && len(s.arrivals) == 0 {
		return
	}
	rx := s.rx
	done := rx.order.done()
	if !s.copies && rx.idle() {
		s.applied = false
		rx.c.reply(s.requests)
		s.requests = s.requests[:0]
		rx.c.arrived(s.arrivals...)
		s.arrivals = s.arrivals[:0]
		rx.c.ack(done)
		return
	}
	rx.mu.Lock()
	rx.stall(func() bool { return rx.posted-rx.completed < completions })
	one := &rx.ring[rx.posted%completions]
	// Counted here, since complete may acknowledge only the later of two completions:
	// what another socket has posted meanwhile must not include more.
	one.ops, one.work = rx.order.done(), rx.queued
	one.holds, s.holds = s.holds, one.holds
	one.requests, s.requests = s.requests, one.requests[:0]
	one.arrivals, s.arrivals = s.arrivals, one.arrivals[:0]
	err := rx.Stream.Record(one.event)
	rx.posted++
	s.slots[s.cur].until = rx.posted
	rx.changed.Broadcast()
	rx.mu.Unlock()
	s.applied, s.copies = false, false
	if err != nil {
		rx.c.Broken(err)
	}
}

// idle reports whether the stream has done all that was queued.
func (rx *receiver) idle() bool {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	return rx.queued == rx.finished
}

// await waits for a number of completions.
func (rx *receiver) await(n uint64) {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	rx.stall(func() bool { return rx.completed >= n })
}

// stall waits for the device until what holds, and reads nothing meanwhile. The caller holds
// mu.
func (rx *receiver) stall(until func() bool) {
	rx.stalls++
	for !until() {
		rx.changed.Wait()
	}
	rx.stalls--
}

// stalled reports whether a socket waits for the device.
func (rx *receiver) stalled() bool {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	return rx.stalls > 0
}

// awaitAll waits for all completions that are posted.
func (rx *receiver) awaitAll() {
	rx.mu.Lock()
	n := rx.posted
	rx.mu.Unlock()
	rx.await(n)
}

// complete waits for the completions in turn, releases their memories, answers reads behind
// them, and acknowledges. It returns after the last one.
func (rx *receiver) complete() {
	for {
		rx.mu.Lock()
		for rx.posted == rx.completed && !rx.ended {
			rx.changed.Wait()
		}
		if rx.posted == rx.completed {
			rx.mu.Unlock()
			return
		}
		one := &rx.ring[rx.completed%completions]
		rx.mu.Unlock()

		err := one.event.Synchronize(rx.c.Drain)
		if err != nil {
			rx.c.Broken(err)
		}
		one.holds.Release()
		ops, failed := one.ops, err != nil
		if !failed {
			rx.c.reply(one.requests)
			rx.c.arrived(one.arrivals...)
		}

		rx.mu.Lock()
		rx.finished = one.work
		rx.completed++
		more := rx.posted != rx.completed
		var next *completion
		if more {
			next = &rx.ring[rx.completed%completions]
		}
		rx.changed.Broadcast()
		rx.mu.Unlock()
		if failed {
			continue
		}
		if more {
			if done, err := next.event.Query(); done && err == nil {
				continue // whose acknowledgement includes this one
			}
		}
		rx.c.ack(ops)
	}
}
