package proxyservice

import (
	"slices"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// kept implements native.Room.
type kept struct {
	s                    *ProxyService
	semaphores, memories int
}

func init() { native.RoomIn = func(s any) native.Room { return &kept{s: s.(*ProxyService)} } }

// fresh returns which of memories the service does not have, each once. The caller holds mu.
func (s *ProxyService) fresh(memories any) (fresh []*registeredmem.Memory) {
	for _, m := range memories.([]*registeredmem.Memory) {
		if _, known := s.memories[m]; m != nil && !known && !slices.Contains(fresh, m) {
			fresh = append(fresh, m)
		}
	}
	return fresh
}

func (k *kept) Memories(memories any, more int) error {
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

func (k *kept) Semaphore() error {
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

func (k *kept) Add(sem, memories any) error {
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
	_, err := s.addSemaphore(sem.(*semaphore.Host2Device))
	return err
}

func (k *kept) Leave() {
	if k.semaphores+k.memories == 0 { // also of no service
		return
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	k.s.reserved -= k.semaphores
	k.s.kept -= k.memories
	k.semaphores, k.memories = 0, 0
}
