package ethernet

// settle posts what the socket has applied, and acknowledges it at once where the
// stream has nothing to do.
func (s *socket) settle() {
	if !s.applied && !s.copies {
		return
	}
	rx := s.rx
	done := rx.order.done()
	if !s.copies && rx.idle() {
		s.applied = false
		rx.c.ack(done)
		return
	}
	rx.mu.Lock()
	for rx.posted-rx.completed == completions {
		rx.changed.Wait()
	}
	one := &rx.ring[rx.posted%completions]
	one.ops, one.work = done, rx.queued
	one.holds, s.holds = s.holds, one.holds[:0]
	err := rx.stream.Record(one.event)
	rx.posted++
	s.slots[s.cur].until = rx.posted
	rx.changed.Broadcast()
	rx.mu.Unlock()
	s.applied, s.copies = false, false
	if err != nil {
		rx.c.broken(err)
	}
}

// idle says whether the stream has done all that it was given.
func (rx *receiver) idle() bool {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	return rx.queued == rx.finished
}

// reach waits for a number of completions.
func (rx *receiver) reach(n uint64) {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	for rx.completed < n {
		rx.changed.Wait()
	}
}

// reachAll waits for the completions that are posted.
func (rx *receiver) reachAll() {
	rx.mu.Lock()
	n := rx.posted
	rx.mu.Unlock()
	rx.reach(n)
}

// complete waits for completions in turn, lets go of their memories, and
// acknowledges. It ends behind the last of them.
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

		err := one.event.Synchronize(rx.c.drain)
		if err != nil {
			rx.c.broken(err)
		}
		for _, m := range one.holds {
			m.release()
		}
		ops, failed := one.ops, err != nil

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
				continue // which acknowledges this one too
			}
		}
		rx.c.ack(ops)
	}
}
