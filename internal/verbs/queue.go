package verbs

// #include "api.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// QP is a reliable connected queue pair.
type QP struct {
	context *Context
	qp      *C.struct_ibv_qp
}

// NewQP makes a queue pair of those depths and moves it to INIT on the port.
func (p *PD) NewQP(send, receive *CQ, sends, receives, port int, access Access) (*QP, error) {
	op := "verbs: make a queue pair of " + p.context.name
	api := p.context.api
	qp, err := C.verbs_create_qp(api, p.pd, send.cq, receive.cq, C.uint32_t(sends), C.uint32_t(receives))
	if qp == nil {
		return nil, failure(op, err)
	}
	if err := number(op, C.verbs_qp_init(api, qp, C.int(port), C.int(access))); err != nil {
		C.verbs_destroy_qp(api, qp)
		return nil, err
	}
	return &QP{p.context, qp}, nil
}

// Number returns the queue pair's number, by which the peer addresses it.
func (q *QP) Number() uint32 { return uint32(q.qp.qp_num) }

// Path holds the parameters of a connection to a peer, in the terms of
// ibv_modify_qp(3).
type Path struct {
	GID          [16]byte // the peer's
	PeerQP       uint32
	PSN          uint32 // the number of this side's first packet
	PeerPSN      uint32 // and of the peer's
	LID          uint16 // the peer's, on InfiniBand
	MTU          uint8  // 1 for 256 bytes to 5 for 4096
	Port         uint8
	Global       bool // goes by GID
	GIDIndex     uint8
	HopLimit     uint8
	TrafficClass uint8
	ServiceLevel uint8
	Reads        uint8 // RDMA reads and atomics under way that this side starts; at most the peer's PeerReads
	PeerReads    uint8 // and the peer
	Timeout      uint8 // 4.096 µs times 2 to this power
	Retries      uint8
	RNRRetries   uint8 // 7: for ever
	RNRTimer     uint8
	_            [1]byte
}

// Connect moves the queue pair to RTR and RTS. From then on it receives and sends.
func (q *QP) Connect(path *Path) error {
	var step C.int
	rc := C.verbs_qp_connect(q.context.api, q.qp, (*C.verbs_path)(unsafe.Pointer(path)), &step)
	to := "ready to receive"
	if step == C.IBV_QPS_RTS {
		to = "ready to send"
	}
	return number(fmt.Sprintf("verbs: make queue pair %d of %s %s", q.Number(), q.context.name, to), rc)
}

// Fail ends all requests of both queues with StatusFlushed.
func (q *QP) Fail() error {
	return number(fmt.Sprintf("verbs: stop queue pair %d of %s", q.Number(), q.context.name), C.verbs_qp_fail(q.context.api, q.qp))
}

// Opcode is the operation of a request.
type Opcode uint16

// The operations of requests.
const (
	Write    Opcode = C.IBV_WR_RDMA_WRITE
	WriteImm Opcode = C.IBV_WR_RDMA_WRITE_WITH_IMM // a Write that takes a receive of the peer's
	Read     Opcode = C.IBV_WR_RDMA_READ
	FetchAdd Opcode = C.IBV_WR_ATOMIC_FETCH_AND_ADD
	Swap     Opcode = C.IBV_WR_ATOMIC_CMP_AND_SWP // of a word that is what the request compares it to
)

// Flags modify a request.
type Flags uint16

// The flags of requests.
const (
	Signaled Flags = C.IBV_SEND_SIGNALED // the request makes a completion
)

// Work is a request.
type Work struct {
	ID        uint64
	Local     uint64 // where this side's data is, in terms of its registration
	Remote    uint64 // and the peer's
	Value     uint64 // what FetchAdd adds and Swap stores, or the 32 bits that WriteImm sends to the peer
	Compare   uint64 // what a word must be for Swap to store
	Size      uint32 // bytes; of a Write also 0
	LocalKey  uint32
	RemoteKey uint32
	Opcode    Opcode
	Flags     Flags
}

// Pointer returns the ibv_qp of post.h, for C code that posts.
func (q *QP) Pointer() unsafe.Pointer { return unsafe.Pointer(q.qp) }

// Post posts requests in order, with one call of the driver for each 64, and returns
// how many were posted. The caller must know that the queue has room. Calls for one
// queue pair must not be concurrent.
func (q *QP) Post(work []Work) (int, error) {
	if len(work) == 0 {
		return 0, nil
	}
	var posted C.int
	rc := C.verbs_post_send(q.qp, (*C.verbs_work)(unsafe.Pointer(&work[0])), C.int(len(work)), &posted)
	if rc != 0 {
		return int(posted), number(fmt.Sprintf("verbs: post to queue pair %d of %s", q.Number(), q.context.name), rc)
	}
	return int(posted), nil
}

// PostReceives posts n receive requests without memory. Each WriteImm of the peer takes
// one. Calls for one queue pair must not be concurrent.
func (q *QP) PostReceives(n int) error {
	return number(fmt.Sprintf("verbs: post receives to queue pair %d of %s", q.Number(), q.context.name), C.verbs_post_receives(q.qp, C.int(n)))
}

// Close releases the queue pair and what is queued in it.
func (q *QP) Close() error {
	return number(fmt.Sprintf("verbs: release queue pair %d of %s", q.Number(), q.context.name), C.verbs_destroy_qp(q.context.api, q.qp))
}

// Go and C must lay these out alike.
const (
	_ = -(unsafe.Sizeof(Work{}) ^ C.sizeof_verbs_work)
	_ = -(unsafe.Sizeof(Path{}) ^ C.sizeof_verbs_path)
	_ = -(unsafe.Sizeof(Completion{}) ^ C.sizeof_verbs_completion)
)
