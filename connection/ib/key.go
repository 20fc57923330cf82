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

// keyVersion is that of the bytes.
const keyVersion = 2

// maxBase bounds base: no page is larger.
const maxBase = 1 << 21

func (k *key) encode() []byte {
	w := wire.NewWriter(24 + 4*len(k.keys))
	w.U8(keyVersion)
	w.Bool(k.device)
	w.U32(uint32(k.base))
	w.U64(k.place)
	w.U8(uint8(len(k.keys)))
	for _, one := range k.keys {
		w.U32(one)
	}
	return w.Bytes()
}

func decodeKey(data []byte) (key, error) {
	r := wire.NewReader(data)
	if v := r.U8(); v != keyVersion {
		r.Fail(fmt.Errorf("version %d is not %d", v, keyVersion))
	}
	k := key{device: r.Bool(), base: uint64(r.U32()), place: r.U64()}
	n := int(r.U8())
	if n == 0 || n > maxQueuePairs {
		r.Fail(fmt.Errorf("keys of %d devices", n))
	} else {
		for range n {
			k.keys = append(k.keys, r.U32())
		}
	}
	if k.base >= maxBase {
		r.Fail(errors.New("it begins beyond the end of a page"))
	}
	return k, r.End()
}
