package registeredmem

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// formatVersion is the version of a memory's bytes.
const formatVersion = 4

// wordSize is the size of the words that are stored, added to and exchanged, in bytes.
const wordSize = 8

var formatKind = [4]byte{'M', 'G', 'R', 'M'}

// description is the content of the bytes of a memory.
type description struct {
	group      [16]byte
	rank       uint32
	instance   uint64 // of the registry
	id         uint32
	transports Transports
	size       uint64
	phase      uint32   // of its address, by which words are aligned: the remainder by wordSize
	host       string   `wire:"255"` // of hostid.MaxSize at most
	device     [16]byte // UUID
	socket     string   `wire:"64"`  // where to ask for the memory
	keys       keys     `wire:"256"` // of maxKey at most
}

var descriptions = wire.For[description]()

func (d *description) encode() []byte { return descriptions.Seal(formatKind, formatVersion, d) }

func decode(data []byte) (description, error) {
	d, err := descriptions.Open(formatKind, formatVersion, data)
	switch {
	case err != nil:
	case d.rank > math.MaxInt32:
		err = fmt.Errorf("rank %d is out of range", d.rank)
	case d.transports&^allTransports != 0:
		err = fmt.Errorf("transports %#x are unknown", uint32(d.transports))
	case d.size == 0 || d.size > math.MaxInt64:
		err = fmt.Errorf("a size of %d bytes is out of range", d.size)
	case d.phase >= wordSize:
		err = fmt.Errorf("an address of %d modulo %d is out of range", d.phase, wordSize)
	case d.host == "":
		err = errors.New("the host's identity is empty")
	case !fdpass.ValidName(d.socket):
		err = fmt.Errorf("%q is not the name of a socket", d.socket)
	}
	return d, err
}
