package registeredmem

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// request asks a registry's server for a memory.
type request struct {
	instance uint64
	id       uint32
}

const requestVersion = 2 // of answers too

var requests = wire.For[request]()

func (q request) encode() []byte { return requests.MarshalVersion(requestVersion, &q) }

func decodeRequest(b []byte) (request, error) { return requests.UnmarshalVersion(requestVersion, b) }

// means is how a memory is passed.
type means uint8

const (
	byDescriptor means = iota + 1
	byIPCHandle
	byPointer
	refused
)

// answer is the answer of a registry's server.
type answer struct {
	means means

	// The memory is size bytes at offset of the allocation with that number
	// among the registry's, which has capacity bytes. Not for byPointer.
	allocation             uint64
	capacity, offset, size uint64

	handle [64]byte // byIPCHandle

	kind   mscclgo.Kind // refused: ErrUnsupported or ErrRemote
	reason string       `wire:"1024"` // refused
}

var answers = wire.For[answer]()

func (a answer) encode() []byte { return answers.Marshal(&a) }

func decodeAnswer(b []byte) (answer, error) {
	a, err := answers.Unmarshal(b)
	switch {
	case err != nil:
	case a.means < byDescriptor || a.means > refused:
		err = fmt.Errorf("an answer of unknown kind %d", a.means)
	case a.means == refused && a.kind != mscclgo.ErrUnsupported && a.kind != mscclgo.ErrRemote:
		err = fmt.Errorf("a refusal of kind %d", a.kind)
	case a.capacity > math.MaxInt64 || a.offset > a.capacity || a.size > a.capacity-a.offset:
		err = errors.New("the memory does not lie in its allocation")
	}
	return a, err
}
