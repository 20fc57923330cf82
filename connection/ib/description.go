package ib

import (
	"errors"
	"fmt"
	"math"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// formatVersion is the version of an endpoint's bytes.
const formatVersion = 7

var formatKind = [4]byte{'M', 'G', 'I', 'B'}

// description is the content of the bytes of an endpoint.
type description struct {
	group    [16]byte
	rank     uint32
	registry uint64 // the number of the one whose memories are registered with its devices
	atomics  bool
	inbox    uint32 // the remote key of its inbox
	anchor   uint32 // the remote key of memory of its device that is always there
	// anchorBase is the offset of that memory's first byte in its page, as key.base is.
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

var descriptions = wire.For[description]()

func (d *description) encode() []byte { return descriptions.Seal(formatKind, formatVersion, d) }

func decode(data []byte) (description, error) {
	d, err := descriptions.Open(formatKind, formatVersion, data)
	switch {
	case err != nil:
	case d.rank > math.MaxInt32:
		err = fmt.Errorf("rank %d is out of range", d.rank)
	case d.anchorBase >= maxBase:
		err = errors.New("memory begins beyond the end of a page")
	case len(d.queues) == 0 || len(d.queues) > maxQueuePairs:
		err = fmt.Errorf("it has %d queue pairs", len(d.queues))
	}
	for _, q := range d.queues {
		switch {
		case err != nil:
		case q.nic >= maxQueuePairs:
			err = fmt.Errorf("device %d", q.nic)
		case q.reads < 1 || q.reads > maxReads:
			err = fmt.Errorf("%d reads at a time", q.reads)
		case q.mtu < 1 || q.mtu > 5:
			err = fmt.Errorf("MTU %d", q.mtu)
		case q.number > max24 || q.psn > max24:
			err = errors.New("a queue pair's or packet's number has more than 24 bits")
		}
	}
	return d, err
}
