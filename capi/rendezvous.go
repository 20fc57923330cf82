package capi

// #include "process.h"
import "C"

import "github.com/mscclgo/mscclgo/bootstrap"

func (c *call) rendezvousCreate(address *C.char, result *handle) error {
	need(c.to("open a rendezvous"), address)
	return makes(c, result, nil, aRendezvous, func() (*bootstrap.Rendezvous, error) {
		readEnvironment()
		return bootstrap.NewRendezvous(C.GoString(address), logger())
	})
}

func (c *call) rendezvousID(rendezvous handle, id *C.char, bytes uint64) error {
	_, r := get[*bootstrap.Rendezvous](c.to("get the id of a rendezvous"), aRendezvous, rendezvous)
	return c.storeID(r.ID(), id, bytes)
}

// storeID stores an id as a text with a zero behind it.
func (c *call) storeID(id bootstrap.UniqueID, to *C.char, bytes uint64) error {
	room, text := c.host(addressOf(to), bytes, writes), id.String()
	if len(text) >= len(room) {
		return invalid(c.op, "the id has %d bytes and a zero, and there is room for %d; MSCCLGO_ID_BYTES is enough", len(text), len(room))
	}
	room[copy(room, text)] = 0
	return nil
}
