package proxyservice

import (
	"slices"

	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// room implements inside.Room.
type room struct {
	s                    *ProxyService
	semaphores, memories int
}

// fresh returns which of memories the service does not have, each once. The caller holds mu.
func (s *ProxyService) fresh(memories []*registeredmem.Memory) (fresh []*registeredmem.Memory) {
	for _, m := range memories {
		if _, known := s.memories[m]; m != nil && !known && !slices.Contains(fresh, m) {
			fresh = append(fresh, m)
		}
	}
	return fresh
}

func (k *room) Memories(memories []*registeredmem.Memory, more int) error {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.fresh(memories)) + more
	err := s.roomForMemories(n)
	if err == nil {
		s.kept += n
		k.memories += n
	}
	return err
}

func (k *room) Semaphore() error {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.room(true)
	if err == nil {
		s.reserved++
		k.semaphores++
	}
	return err
}

func (k *room) Add(sem *semaphore.Host2Device, memories []*registeredmem.Memory) error {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.fresh(memories) {
		s.kept--
		k.memories--
		if _, err := s.addMemory(m); err != nil {
			return err
		}
	}
	s.reserved--
	k.semaphores--
	_, err := s.addSemaphore(sem)
	return err
}

func (k *room) Leave() {
	if k.semaphores+k.memories == 0 { // also of no service
		return
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	k.s.reserved -= k.semaphores
	k.s.kept -= k.memories
	k.semaphores, k.memories = 0, 0
}
