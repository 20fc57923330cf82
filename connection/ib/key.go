package ib

import (
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// key is what peers must know of a memory.
type key struct {
	device bool     // it is a GPU's
	base   uint64   // of its first byte in its page
	place  uint64   // of its first byte among all memory of the rank; it is no address
	keys   []uint32 // one for each device of the rank
}

// keyVersion is the version of a key's bytes.
const keyVersion = 3

// maxBase bounds base: no page is larger.
const maxBase = 1 << 21

var keysWire = wire.For[key]()

func (k *key) encode() []byte { return keysWire.MarshalVersion(keyVersion, k) }

func decodeKey(data []byte) (key, error) {
	k, err := keysWire.UnmarshalVersion(keyVersion, data)
	switch {
	case err != nil:
	case len(k.keys) == 0 || len(k.keys) > maxQueuePairs:
		err = fmt.Errorf("keys of %d devices", len(k.keys))
	case k.base >= maxBase:
		err = errors.New("it begins beyond the end of a page")
	}
	return k, err
}
