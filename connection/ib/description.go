package ib

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// formatVersion is that of an endpoint's bytes.
const formatVersion = 7

var formatKind = [4]byte{'M', 'G', 'I', 'B'}

// description is the content of the bytes of an endpoint.
type description struct {
	group    [16]byte
	rank     uint32
	registry uint64 // the number of the one whose memories are registered with its devices
	atomics  bool
	inbox    uint32 // the remote key of its inbox
	anchor   uint32 // that of memory of its device which is always there
	// anchorBase is that of a key: of the memory's first byte in its page.
	anchorBase uint32
	queues     []address
}

// address is the address of a queue pair.
type address struct {
	nic        uint8 // index among the rank's devices
	infiniBand bool
	mtu        uint8 // 1 for 256 bytes to 5 for 4096
	lid        uint16
	gid        [16]byte
	number     uint32
	psn        uint32
	reads      uint8 // RDMA reads and atomics that its card answers at a time
}

const max24 = 1<<24 - 1

func (d *description) encode() []byte {
	w := wire.NewWriter(64 + 32*len(d.queues))
	w.Raw(d.group[:])
	w.U32(d.rank)
	w.U64(d.registry)
	w.Bool(d.atomics)
	w.U32(d.inbox)
	w.U32(d.anchor)
	w.U32(d.anchorBase)
	w.U8(uint8(len(d.queues)))
	for _, q := range d.queues {
		w.U8(q.nic)
		w.Bool(q.infiniBand)
		w.U8(q.mtu)
		w.U16(q.lid)
		w.Raw(q.gid[:])
		w.U32(q.number)
		w.U32(q.psn)
		w.U8(q.reads)
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
	d.registry = r.U64()
	d.atomics = r.Bool()
	d.inbox = r.U32()
	d.anchor, d.anchorBase = r.U32(), r.U32()
	n := int(r.U8())
	switch {
	case d.rank > math.MaxInt32:
		r.Fail(fmt.Errorf("rank %d is out of range", d.rank))
	case d.anchorBase >= maxBase:
		r.Fail(errors.New("memory begins beyond the end of a page"))
	case n == 0 || n > maxQueuePairs:
		r.Fail(fmt.Errorf("it has %d queue pairs", n))
	}
	for range n {
		if r.Err() != nil {
			break
		}
		q := address{nic: r.U8(), infiniBand: r.Bool(), mtu: r.U8(), lid: r.U16()}
		copy(q.gid[:], r.Raw(len(q.gid)))
		q.number, q.psn, q.reads = r.U32(), r.U32(), r.U8()
		switch {
		case q.nic >= maxQueuePairs:
			r.Fail(fmt.Errorf("device %d", q.nic))
		case q.reads < 1 || q.reads > maxReads:
			r.Fail(fmt.Errorf("%d reads at a time", q.reads))
		case q.mtu < 1 || q.mtu > 5:
			r.Fail(fmt.Errorf("MTU %d", q.mtu))
		case q.number > max24 || q.psn > max24:
			r.Fail(errors.New("a queue pair's or packet's number has more than 24 bits"))
		}
		d.queues = append(d.queues, q)
	}
	return d, r.End()
}
