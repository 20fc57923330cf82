package bootstrap

import (
	"fmt"
	"io"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// MaxMessage is the most bytes one message carries: one Send, one Broadcast,
// or the blocks of all ranks of one AllGather with 16 bytes each.
const MaxMessage = 64 << 20

// A frameKind is the kind of a frame. The first group is sent between ranks, the
// second between a rank and the rendezvous, as are frameFailed and the frameGoodbye of a
// rank that gives up, or of a rendezvous that closes in good order.
type frameKind uint8

const (
	frameOpen       frameKind = 1 // the dialer has seen the handshake's end
	frameData       frameKind = 2 // tag: the message's tag
	frameCollective frameKind = 3 // tag: the collective's number
	frameLeft       frameKind = 4 // tag: the rank that left in good order
	frameFailed     frameKind = 5 // tag: the rank that failed; payload: why
	frameGoodbye    frameKind = 6 // the sender leaves; nothing follows. tag: 1 if all do
	frameCallLeft   frameKind = 7 // tag: the collective's number; payload: watch.Fact
	frameAwaits     frameKind = 8 // tag: the collective's number; payload: watch.Fact of the ranks that the sender waits for
	frameAsk        frameKind = 9 // of any end, to be answered by frameAlive

	frameJoin      frameKind = 16 // payload: joinMessage
	frameTable     frameKind = 17 // payload: encodeTable
	frameRefused   frameKind = 18 // payload: watch.Fact
	frameConnected frameKind = 19 // the rank is connected to its parent; back: all are
	frameAlive     frameKind = 20 // a sign of life, of any end

	// Between a process and an elastic rendezvous.
	frameCome      frameKind = 24 // payload: comeMessage
	frameAssigned  frameKind = 25 // payload: assignment
	frameNewcomers frameKind = 26 // tag: the generation; processes wait to be taken in
	frameLeftOut   frameKind = 27 // tag: the generation that the receiver is not in
)

const (
	frameHeaderSize = 1 + 3 + 4 + 8
	maxNews         = 8 << 10
	maxTable        = 16 << 20
)

// limit returns the most payload bytes of a kind, or -1 for no such kind.
func (k frameKind) limit() int {
	switch k {
	case frameOpen, frameLeft, frameGoodbye, frameAsk, frameConnected, frameAlive, frameNewcomers, frameLeftOut:
		return 0
	case frameData:
		return MaxMessage
	case frameCollective:
		return MaxMessage + treeOverhead
	case frameFailed, frameJoin, frameRefused, frameCallLeft, frameAwaits, frameCome, frameAssigned:
		return maxNews
	case frameTable:
		return maxTable
	}
	return -1
}

// A frame is one message on a connection after its handshake.
type frame struct {
	kind    frameKind
	tag     uint64
	payload []byte
}

// What follows a payload: whether it is what its sender wanted to send.
const (
	frameWhole   = 0
	frameGivenUp = 1 // the sender's context ended in the middle; the frame is dropped
)

// encode returns the frame's bytes: the header, and, unless it is empty, the payload and
// frameWhole.
func (f frame) encode() []byte {
	head := header(f.kind, f.tag, len(f.payload))
	b := append(head[:], f.payload...)
	if len(f.payload) > 0 {
		b = append(b, frameWhole)
	}
	return b
}

// header returns kind (1), zeros (3), payload size (4) and tag (8).
func header(kind frameKind, tag uint64, size int) [frameHeaderSize]byte {
	w := wire.NewWriter(frameHeaderSize)
	w.U8(uint8(kind))
	w.Raw([]byte{0, 0, 0})
	w.U32(uint32(size))
	w.U64(tag)
	return [frameHeaderSize]byte(w.Bytes())
}

// readFrame reads the next frame that was not given up. At the end of the stream between
// two frames it returns io.EOF.
func readFrame(r io.Reader) (frame, error) {
	for {
		f, whole, err := readOne(r)
		if err != nil || whole {
			return f, err
		}
	}
}

// readOne reads one frame, and whether it is whole.
func readOne(r io.Reader) (f frame, whole bool, err error) {
	var head [frameHeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, false, err
	}
	h := wire.NewReader(head[:])
	f.kind = frameKind(h.U8())
	zeros := [3]byte(h.Raw(3))
	size := int64(h.U32())
	f.tag = h.U64()
	switch limit := f.kind.limit(); {
	case limit < 0:
		return frame{}, false, fmt.Errorf("malformed frame: kind %d", f.kind)
	case zeros != [3]byte{}:
		return frame{}, false, fmt.Errorf("malformed frame: reserved bytes %v are not zero", zeros)
	case size > int64(limit):
		return frame{}, false, fmt.Errorf("malformed frame: kind %d with %d bytes, at most %d are allowed", f.kind, size, limit)
	case size == 0:
		return f, true, nil
	}
	if f.payload, err = readPayload(r, int(size)); err != nil {
		return frame{}, false, err
	}
	var end [1]byte
	if _, err := io.ReadFull(r, end[:]); err != nil {
		return frame{}, false, fmt.Errorf("frame cut short: its end is missing: %w", io.ErrUnexpectedEOF)
	}
	if end[0] > frameGivenUp {
		return frame{}, false, fmt.Errorf("malformed frame: it ends with %d", end[0])
	}
	return f, end[0] == frameWhole, nil
}

// readPayload reads size bytes. It allocates as they arrive, so that a header
// alone cannot make this rank allocate what it announces.
func readPayload(r io.Reader, size int) ([]byte, error) {
	const step = 1 << 20
	b := make([]byte, min(size, step))
	for n := 0; ; {
		m, err := io.ReadFull(r, b[n:])
		n += m
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("frame cut short: %d of %d bytes: %w", n, size, io.ErrUnexpectedEOF)
		}
		if err != nil || n == size {
			return b, err
		}
		grown := make([]byte, min(size, 2*n))
		copy(grown, b)
		b = grown
	}
}
