// Package target holds the memories of a rank that its peers write to and read by messages,
// which the rank checks and applies.
package target

import (
	"sync"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/race"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Memory is a memory of this rank that peers write to and read.
type Memory struct {
	ID     uint32
	Buffer *gpu.Buffer
	rank   int          // whose it is
	letGo  func() error // ends the keep of the buffer's memory, or nil
	races  *race.Finder // or nil

	mu    sync.Mutex
	users int        // copies into it and out of it under way
	gone  bool       // it was withdrawn
	idle  *sync.Cond // users fell to 0
}

// Moved tells the race finder, if there is one, that bytes of the memory are read or written for a
// peer next, by the host. Streams tell of what they move.
func (m *Memory) Moved(peer int, offset, n uint64, write bool) {
	if m.races != nil {
		route := race.Route{From: peer, To: m.rank, Memory: m.ID, Offset: offset}
		m.races.Arrived(m.Buffer.Device().String(), route, uint64(m.Buffer.Ptr())+offset, n, write)
	}
}

// Hold keeps the memory from being withdrawn until Release. It reports false if it was
// withdrawn before.
func (m *Memory) Hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return false
	}
	m.users++
	return true
}

// Release ends a Hold.
func (m *Memory) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users--; m.users == 0 {
		m.idle.Broadcast()
	}
}

// Holds are memories that are held.
type Holds []*Memory

// Add holds a memory, unless it was withdrawn.
//
// Errors: a [Refusal].
func (h *Holds) Add(m *Memory) error {
	if !m.Hold() {
		return Gone(m)
	}
	*h = append(*h, m)
	return nil
}

// Release releases all.
func (h *Holds) Release() {
	for _, m := range *h {
		m.Release()
	}
	*h = (*h)[:0]
}

// Withdraw waits until nobody holds the memory, and has nobody hold it again. It is called once.
func (m *Memory) Withdraw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	for m.users > 0 {
		m.idle.Wait()
	}
	if m.letGo == nil {
		return nil
	}
	return m.letGo()
}

// Failed returns err, of work that the device or the system could not do on the memory, or a
// [Refusal] if that is because this rank has closed the buffer and not the memory.
func (m *Memory) Failed(err error) error {
	if m.Buffer.Internal().Freed() {
		return Refuse(Closed, "it sent a frame for memory %d, whose buffer is closed", m.ID)
	}
	return err
}

// Table is the memories of a rank. The zero value has none.
type Table struct {
	mu      sync.Mutex
	open    map[uint32]*Memory
	offered uint32 // all memories that ever were in the table have lower numbers
}

// Offer adds a memory of this rank.
func (t *Table) Offer(m *registeredmem.Memory) {
	one := &Memory{ID: m.ID(), Buffer: m.Buffer(), rank: m.Rank()}
	// Copies may be under way if the buffer is closed before the memory.
	if letGo, ok := one.Buffer.Internal().Keep(); ok {
		one.letGo = letGo
	}
	one.idle = sync.NewCond(&one.mu)
	one.races, _ = race.Current()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[uint32]*Memory{}
	}
	t.open[one.ID] = one
	t.offered = max(t.offered, one.ID+1)
}

// Remove has Find refuse a memory from now on. It returns the memory, which the caller
// withdraws, or nil if there is none.
func (t *Table) Remove(id uint32) *Memory {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.open[id]
	delete(t.open, id)
	return m
}

// Find returns the memory that a peer names. All n bytes at the offset must lie inside it,
// and a word must be aligned.
//
// Errors: a [Refusal].
func (t *Table) Find(id uint32, offset, n uint64, word bool) (*Memory, error) {
	t.mu.Lock()
	m, offered := t.open[id], id < t.offered
	t.mu.Unlock()
	switch {
	case m == nil && offered:
		return nil, Refuse(Closed, "it sent a frame for memory %d, which is closed", id)
	case m == nil:
		return nil, Refuse(Unknown, "it sent a frame for memory %d, which never was registered", id)
	}
	if size := m.Buffer.Size(); offset > size || n > size-offset {
		return nil, Refuse(Range, "it names %d bytes at offset %d of memory %d, which has %d", n, offset, id, size)
	}
	if word && (uint64(m.Buffer.Ptr())+offset)%8 != 0 {
		return nil, Refuse(Range, "it names the word at offset %d of memory %d, which is not aligned to 8 bytes", offset, id)
	}
	return m, nil
}
