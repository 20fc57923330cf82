package shm

import (
	"fmt"
	"math"
	"net"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// protocolVersion is the version of requests, and of rings and messages.
const protocolVersion = 3

// request is what a rank asks for that connects to another: a ring to write into.
type request struct {
	from, to uint32       // ranks
	endpoint [idSize]byte // of the rank that receives
}

var requests = wire.For[request]()

func (q *request) encode() []byte { return requests.MarshalVersion(protocolVersion, q) }

func decodeRequest(b []byte) (request, error) {
	q, err := requests.UnmarshalVersion(protocolVersion, b)
	if err == nil && q.from > math.MaxInt32 {
		err = fmt.Errorf("rank %d is out of range", q.from)
	}
	return q, err
}

// maxReason bounds why a ring is refused, in bytes.
const maxReason = 512

// serve answers a member that wants to connect: with a ring of its own, or with the reason
// why there is none.
func (t *Transport) serve(asked []byte, _ bool) fdpass.Answer {
	refuse := func(err error) fdpass.Answer {
		t.rank.Log.Warn("shm: refused a connection", "error", err)
		text := err.Error()
		return fdpass.Answer{Body: []byte(text[:min(len(text), maxReason)])}
	}
	q, err := decodeRequest(asked)
	if err != nil {
		return refuse(err)
	}
	if err := t.admit(&q); err != nil {
		return refuse(err)
	}
	ring, file, err := makeRing(t.rank.Registry.Device(), t.opts.Ring)
	if err != nil {
		return refuse(err)
	}
	return fdpass.Answer{File: file, Stay: func(sock *net.UnixConn) {
		if sock == nil {
			if err := ring.Close(); err != nil {
				t.rank.Log.Warn("shm: a ring that nobody took", "peer", q.from, "error", err)
			}
			return
		}
		if err := t.receive(int(q.from), sock, ring); err != nil {
			t.rank.Log.Warn("shm: cannot receive", "peer", q.from, "error", err)
		}
	}}
}

// admit returns an error if a member's request does not fit this rank.
func (t *Transport) admit(q *request) error {
	n := len(message.All[*receiver](&t.rank))
	t.rank.Mu.Lock()
	defer t.rank.Mu.Unlock()
	switch {
	case t.rank.Closed:
		return fmt.Errorf("the transport of rank %d is closing", t.rank.Registry.Rank())
	case q.to != uint32(t.rank.Registry.Rank()) || t.endpoints[q.endpoint] == nil:
		return fmt.Errorf("rank %d asked for an endpoint of rank %d that does not exist", q.from, q.to)
	case n >= maxReceivers:
		return fmt.Errorf("rank %d has %d connections from peers already", t.rank.Registry.Rank(), n)
	}
	return nil
}

// maxReceivers bounds the connections from peers, which are members and need far fewer.
const maxReceivers = 1024
