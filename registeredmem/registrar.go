package registeredmem

import (
	"errors"

	"github.com/mscclgo/mscclgo"
)

// maxKey is the largest size of the key that a [Registrar] returns for a memory, in
// bytes.
const maxKey = 256

// Registrar is one rank's end of a transport that does not map memory. The
// registry registers its memories with it, so that peers can write to them.
type Registrar interface {
	// Transport returns the one transport that this is, which is not CudaIPC.
	Transport() Transports

	// Offer lets peers write to m, a memory of this rank that is being registered.
	// It returns the key that peers need besides the rank, number and size, of at
	// most 256 bytes. It must not call the registry.
	Offer(m *Memory) ([]byte, error)

	// Withdraw undoes Offer. Once it has returned, nothing that a peer sends changes
	// the memory.
	Withdraw(m *Memory) error
}

// Attach has c registered with the registry: all memories of this rank are offered
// over it from now on, and peers' memories can be imported over it. The caller
// still owns it, and closes it after the registry.
//
// Errors: ErrInvalid for nil, when there is already a registrar for that transport, when
// its transport is not InfiniBand, Ethernet or SHM, once a memory was registered, and once the
// registry is closed.
func (r *Registry) Attach(c Registrar) error {
	const op = "registeredmem: attach a registrar"
	if c == nil {
		return r.fault(op, "it is nil")
	}
	t := c.Transport()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return r.fault(op, "the registry is closed")
	case !t.One() || t == CudaIPC:
		return r.fault(op, "its transport %v is not one that works without mapping", t)
	case r.attached().Has(t):
		return r.fault(op, "there is already a registrar for %v", t)
	case r.nextID > 0:
		return r.fault(op, "memories have been registered without it")
	}
	r.registrars = append(r.registrars, c)
	return nil
}

// attached returns the transports of the registrars. The caller holds mu.
func (r *Registry) attached() Transports {
	var t Transports
	for _, c := range r.registrars {
		t |= c.Transport()
	}
	return t
}

// offer offers m over all registrars, or over none.
func (r *Registry) offer(m *Memory) error {
	for i, c := range r.registrars {
		key, err := c.Offer(m)
		if err == nil && len(key) > maxKey {
			err = errors.Join(mscclgo.Errorf(mscclgo.ErrInvalid, "offer it over "+c.Transport().String(), "its key has %d bytes, at most %d are allowed", len(key), maxKey), c.Withdraw(m))
		}
		if err != nil {
			return errors.Join(err, m.withdraw(r.registrars[:i]))
		}
		m.about.transports |= c.Transport()
		*m.about.keys.of(c.Transport()) = string(key)
	}
	return nil
}

// withdraw withdraws m from registrars.
func (m *Memory) withdraw(registrars []Registrar) error {
	var errs []error
	for i := len(registrars) - 1; i >= 0; i-- {
		errs = append(errs, registrars[i].Withdraw(m))
	}
	return errors.Join(errs...)
}

// Key returns the key of the memory for one transport, as the [Registrar] of the
// rank that registered it returned it, or an empty slice.
func (m *Memory) Key(t Transports) []byte {
	if !t.One() {
		return nil
	}
	return []byte(*m.about.keys.of(t))
}

// Find returns the open memory of this rank with that number, or nil.
func (r *Registry) Find(id uint32) *Memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.local[id]
}
