package proxyservice

import (
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// Internal is for packages of this module.
func (s *ProxyService) Internal() inside.Service[*gpu.Device, *registeredmem.Memory, *semaphore.Host2Device] {
	return serviceInside{s}
}

type serviceInside struct{ *ProxyService }

func (s serviceInside) Tell(t inside.Telling) {
	s.explain, s.naming = t.Explain, t.Channel
	if t.Trace != nil {
		s.traceTo(t.Trace)
	}
}

func (s serviceInside) Device() *gpu.Device {
	if s.ring == nil {
		return nil
	}
	return s.ring.Device()
}

func (s serviceInside) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s serviceInside) InHandler() bool {
	s.life.Lock()
	defer s.life.Unlock()
	return s.running != nil && s.running.itself()
}

func (s serviceInside) Still() (rounds, taken uint64, done bool) {
	rounds, taken = s.loop.still()
	done = s.waiting.Load() == 0 // last: what was taken before a round is done or waits
	// A Start has the lock while it waits for a thread that others may hold up: then the
	// proxy has not ended, and the goroutine that watches the group must not wait too.
	if s.life.TryLock() {
		if s.Proxy.closed && s.running == nil {
			rounds = inside.ProxyEnded
		}
		s.life.Unlock()
	}
	return rounds, taken, done
}

func (s serviceInside) Room() inside.Room[*registeredmem.Memory, *semaphore.Host2Device] {
	return &room{s: s.ProxyService}
}
