package registeredmem

import (
	"sync"

	"github.com/mscclgo/mscclgo/gpu"
)

// mappings are the peers' allocations that are mapped here, each once.
type mappings struct {
	mu   sync.Mutex // held while mapping and unmapping, so that nothing is mapped twice
	live map[mappingKey]*mapping
}

// mappingKey identifies an allocation among the allocations of all peers.
type mappingKey struct {
	instance   uint64 // of the peer's registry
	allocation uint64
}

type mapping struct {
	key   mappingKey
	whole *gpu.Buffer
	users int
	taken bool // by the mappings of a registry that follows
}

// take returns the memory of a mapping for another registry, whose it is then, or nil if
// that has been done, or it has another size.
func (m *mappings) take(one *mapping, capacity uint64) *gpu.Buffer {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one.taken || one.users == 0 || one.whole.Size() != capacity {
		return nil
	}
	one.taken = true
	if m.live[one.key] == one {
		delete(m.live, one.key)
	}
	return one.whole
}

// acquire returns the mapping of an allocation for one more user. For the first it
// makes the mapping with open.
func (m *mappings) acquire(key mappingKey, open func() (*gpu.Buffer, error)) (*mapping, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.live[key]
	if one == nil {
		whole, err := open()
		if err != nil {
			return nil, err
		}
		one = &mapping{key: key, whole: whole}
		if m.live == nil {
			m.live = map[mappingKey]*mapping{}
		}
		m.live[key] = one
	}
	one.users++
	return one, nil
}

// release ends one use. The last one unmaps.
func (m *mappings) release(one *mapping) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one.users--; one.users > 0 || one.taken {
		return nil
	}
	delete(m.live, one.key)
	return one.whole.Close()
}
