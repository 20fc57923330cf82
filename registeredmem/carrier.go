package registeredmem

import (
	"errors"
	"math/bits"

	"github.com/mscclgo/mscclgo"
)

// MaxKey is the most bytes of what a [Carrier] gives for a memory.
const MaxKey = 256

// Carrier is one rank's end of a transport that does not map memory: peers reach
// this rank's memories through it, and this rank the peers' through theirs.
type Carrier interface {
	// Transport gives the one transport that this is; never CudaIPC.
	Transport() Transports

	// Offer lets peers reach m, one of this rank's, which is being registered, and
	// gives what their ends need for it besides the rank, number and size, at most
	// [MaxKey] bytes. It must not call the registry.
	Offer(m *Memory) ([]byte, error)

	// Withdraw undoes Offer. When it returns, nothing that a peer sends reaches the
	// memory any more.
	Withdraw(m *Memory) error
}

// Attach makes c carry the memories of this rank that are registered from now
// on, and the peers' that are imported. It stays the caller's, who closes it
// after the registry.
//
// Errors: ErrInvalid when there is a carrier of that transport, or once a memory
// was registered.
func (r *Registry) Attach(c Carrier) error {
	const op = "registeredmem: attach a carrier"
	t := c.Transport()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case t&^(allTransports&^CudaIPC) != 0 || bits.OnesCount32(uint32(t)) != 1:
		return r.fault(op, "%v is not one transport that carries", t)
	case r.carried().Has(t):
		return r.fault(op, "there is one for %v", t)
	case r.nextID > 0:
		return r.fault(op, "memories have been registered without it")
	}
	r.carriers = append(r.carriers, c)
	return nil
}

// carried gives the transports of the carriers. The caller holds mu.
func (r *Registry) carried() Transports {
	var t Transports
	for _, c := range r.carriers {
		t |= c.Transport()
	}
	return t
}

// offer has all carriers carry m, or none.
func (r *Registry) offer(m *Memory) error {
	for i, c := range r.carriers {
		key, err := c.Offer(m)
		if err == nil && len(key) > MaxKey {
			err = errors.Join(mscclgo.Errorf(mscclgo.ErrInvalid, "offer it over "+c.Transport().String(), "its key has %d bytes, at most %d are allowed", len(key), MaxKey), c.Withdraw(m))
		}
		if err != nil {
			return errors.Join(err, m.withdraw(r.carriers[:i]))
		}
		m.about.transports |= c.Transport()
		*m.about.keys.of(c.Transport()) = string(key)
	}
	return nil
}

// withdraw has carriers carry m no more.
func (m *Memory) withdraw(carriers []Carrier) error {
	var errs []error
	for i := len(carriers) - 1; i >= 0; i-- {
		errs = append(errs, carriers[i].Withdraw(m))
	}
	return errors.Join(errs...)
}

// Key gives what the carrier of one transport gave for the memory at the rank
// that registered it, or nothing.
func (m *Memory) Key(t Transports) []byte {
	if bits.OnesCount32(uint32(t)) != 1 || t&^allTransports != 0 {
		return nil
	}
	return []byte(*m.about.keys.of(t))
}

// Find gives the memory that this rank registered with the number, or nil: also
// for memory that is closed.
func (r *Registry) Find(id uint32) *Memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local[id]
}
