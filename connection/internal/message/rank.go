// Package message is what connections have in common whose operations are messages, which the
// peer's transport does: what a rank has for all of them, the queue with its marks, and how they end.
package message

import (
	"bytes"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection/internal/spin"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// IDSize is the size of the random numbers of transports and endpoints, in bytes.
const IDSize = 16

// Rank is what a rank's connections over a transport share.
type Rank struct {
	Name     string // of the transport, for errors
	Registry *registeredmem.Registry
	Instance [IDSize]byte             // of the transport
	Host     func(*gpu.Buffer) []byte // the memory, or nil if the host does not reach it
	Spin     spin.Spinner
	Timeout  time.Duration // how long a peer may be silent
	Targets  *target.Table

	kind registeredmem.Transports
	lost func(peer int, err error)
}

// Init sets what the options of the transport tell.
func (r *Rank) Init(kind registeredmem.Transports, timeout time.Duration, lost func(peer int, err error)) {
	r.kind, r.Timeout, r.lost = kind, timeout, lost
	r.Targets = new(target.Table)
	r.Spin.Allow()
}

// Invalid returns an ErrInvalid error of this rank.
func (r *Rank) Invalid(op, format string, args ...any) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, format, args...).At(r.Registry.Rank(), mscclgo.NoRank)
}

// Wrap returns err with the operation and the ranks. It keeps err's kind; kind is for one that has none.
func (r *Rank) Wrap(kind mscclgo.Kind, op string, peer int, err error) error {
	var e *mscclgo.Error
	if errors.As(err, &e) {
		kind = e.Kind
	}
	return mscclgo.Errorf(kind, op, "%w", err).At(r.Registry.Rank(), peer)
}

// place returns the memory of this rank that bytes of the peer's come to. Those of another transport of the
// rank have the same numbers.
func (r *Rank) place(m *registeredmem.Memory, offset, n uint64, word bool) (*target.Memory, error) {
	if !bytes.Equal(m.Key(r.kind), r.Instance[:]) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, r.Name+": find the place", "%v is of another transport of the rank than the connection", m)
	}
	at, err := r.Targets.Find(m.ID(), offset, n, word)
	if err != nil { // it was closed meanwhile
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, r.Name+": find the place", "%v is closed", m)
	}
	return at, nil
}
