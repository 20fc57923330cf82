package registeredmem

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// formatVersion is the version of a memory's bytes.
const formatVersion = 4

const maxSocketName = 64

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
	phase      uint32 // of its address, by which words are aligned: the remainder by wordSize
	host       string
	device     [16]byte // UUID
	socket     string   // where to ask for the memory
	keys       keys
}

func (d *description) encode() []byte {
	w := wire.NewWriter(256)
	w.Raw(d.group[:])
	w.U32(d.rank)
	w.U64(d.instance)
	w.U32(d.id)
	w.U32(uint32(d.transports))
	w.U64(d.size)
	w.U32(d.phase)
	w.String(d.host)
	w.Raw(d.device[:])
	w.String(d.socket)
	for _, key := range d.keys {
		w.String(key)
	}
	return wire.Seal(formatKind, formatVersion, w.Bytes())
}

func decode(data []byte) (description, error) {
	body, err := wire.Open(formatKind, formatVersion, data)
	if err != nil {
		return description{}, err
	}
	var d description
	r := wire.NewReader(body)
	copy(d.group[:], r.Raw(len(d.group)))
	d.rank = r.U32()
	d.instance = r.U64()
	d.id = r.U32()
	d.transports = Transports(r.U32())
	d.size = r.U64()
	d.phase = r.U32()
	d.host = r.String(hostid.MaxSize)
	copy(d.device[:], r.Raw(len(d.device)))
	d.socket = r.String(maxSocketName)
	for i := range d.keys {
		d.keys[i] = r.String(MaxKey)
	}
	switch {
	case d.rank > math.MaxInt32:
		r.Fail(fmt.Errorf("rank %d is out of range", d.rank))
	case d.transports&^allTransports != 0:
		r.Fail(fmt.Errorf("transports %#x are unknown", uint32(d.transports)))
	case d.size == 0 || d.size > math.MaxInt64:
		r.Fail(fmt.Errorf("a size of %d bytes is out of range", d.size))
	case d.phase >= wordSize:
		r.Fail(fmt.Errorf("an address of %d modulo %d is out of range", d.phase, wordSize))
	case d.host == "":
		r.Fail(errors.New("the host's identity is empty"))
	case !fdpass.ValidName(d.socket):
		r.Fail(fmt.Errorf("%q is not the name of a socket", d.socket))
	}
	return d, r.End()
}
