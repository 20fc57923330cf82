package communicator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Connect returns a connection to a peer, over which the host moves data without a
// kernel. If the group has failed, its error comes before that of the connection, which may
// only be what came of it. Both ranks call it with the same tag, which is below 1<<63 and not in use
// for messages of the bootstrap. After an error both may call it again with that tag.
// The caller closes the connection before the communicator.
//
// Errors: ErrTimeout, naming the peer, when it does not call Connect in time;
// ErrInvalid for a peer outside the group or a tag out of range; those of [connection.Endpoint].
func (c *Communicator) Connect(ctx context.Context, peer int, tag uint64) (*connection.Connection, error) {
	op := fmt.Sprintf("communicator: connect to rank %d", peer)
	if err := c.usable(op); err != nil {
		return nil, err
	}
	if peer < 0 || peer >= c.Size() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the group has %d ranks", c.Size()).At(c.Rank(), mscclgo.NoRank)
	}
	if tag >= gatherTag {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the tag %d is not below 1<<63", tag).At(c.Rank(), peer)
	}
	m := meeting{c: c, op: op, peer: peer, tag: tag, mine: rand.Uint64() | 1}
	conn, err := m.connect(ctx)
	if err != nil { // perhaps of the context, which the group's failure ended
		err = c.causeFirst(err)
		c.noteError(err)
		return nil, err
	}
	native.ExplainConnection(conn, c.causeFirst)
	return conn, nil
}

// connect meets the peer and makes the connection.
func (m *meeting) connect(ctx context.Context) (*connection.Connection, error) {
	endpoint, err := m.c.endpoint(m.peer)
	if err != nil {
		return nil, err
	}
	defer endpoint.Close()
	mine, err := endpoint.MarshalBinary()
	if err != nil {
		return nil, err
	}
	ctx, cancel := m.c.bounded(ctx)
	defer cancel()
	theirs, err := m.exchange(ctx, mine)
	if err != nil {
		return nil, err
	}
	conn, err := endpoint.Connect(ctx, theirs)
	if err != nil {
		if errors.Is(err, mscclgo.ErrRemote) {
			m.c.awaitNews() // a peer that has heard of a failure closes its sockets
		}
		return nil, err
	}
	if err := m.ready(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// meeting is one Connect's exchange of messages with the peer. A Connect that ended
// early leaves messages behind, so each one has a number, and both ranks wait until
// they have seen each other's latest.
type meeting struct {
	c            *Communicator
	op           string
	peer         int
	tag          uint64
	mine, theirs uint64 // the numbers; theirs is 0 until it is known
}

// meetingMessage is a message of Connect.
type meetingMessage struct {
	from, to uint64 // the numbers of the sender's Connect and of the receiver's
	ready    bool   // the sender has connected
	endpoint []byte
}

// exchange sends this rank's endpoint and returns the peer's.
func (m *meeting) exchange(ctx context.Context, endpoint []byte) (theirs []byte, err error) {
	if m.peer == m.c.Rank() {
		return endpoint, nil
	}
	if err := m.send(ctx, meetingMessage{endpoint: endpoint}); err != nil {
		return nil, err
	}
	for {
		in, err := m.receive(ctx)
		if err != nil {
			return nil, err
		}
		if !in.ready && in.from != m.theirs {
			m.theirs, theirs = in.from, in.endpoint
			if err := m.send(ctx, meetingMessage{endpoint: endpoint}); err != nil {
				return nil, err
			}
		}
		if !in.ready && in.to == m.mine {
			return theirs, nil
		}
	}
}

// ready waits until the peer has connected.
func (m *meeting) ready(ctx context.Context) error {
	if m.peer == m.c.Rank() {
		return nil
	}
	if err := m.send(ctx, meetingMessage{ready: true}); err != nil {
		return err
	}
	for {
		in, err := m.receive(ctx)
		switch {
		case err != nil:
			return err
		case in.from != m.theirs:
			return mscclgo.Errorf(mscclgo.ErrRemote, m.op, "the peer's Connect failed, and it calls Connect again").At(m.c.Rank(), m.peer)
		case in.ready && in.to == m.mine:
			return nil
		}
	}
}

func (m *meeting) send(ctx context.Context, out meetingMessage) error {
	out.from, out.to = m.mine, m.theirs
	err := m.c.boot.Send(ctx, m.peer, m.tag, out.encode())
	m.c.sent(m.peer, m.tag)
	return err
}

func (m *meeting) receive(ctx context.Context) (meetingMessage, error) {
	m.c.receive(m.peer, m.tag)
	b, err := m.c.boot.Recv(ctx, m.peer, m.tag)
	if err != nil {
		return meetingMessage{}, err
	}
	in, err := decodeMeeting(b)
	if err != nil {
		return in, mscclgo.Errorf(mscclgo.ErrRemote, m.op, "its message is malformed: %w", err).At(m.c.Rank(), m.peer)
	}
	return in, nil
}

func (m meetingMessage) encode() []byte {
	w := wire.NewWriter(64 + len(m.endpoint))
	w.U64(m.from)
	w.U64(m.to)
	w.Bool(m.ready)
	w.Blob(m.endpoint)
	return w.Bytes()
}

func decodeMeeting(b []byte) (meetingMessage, error) {
	r := wire.NewReader(b)
	m := meetingMessage{from: r.U64(), to: r.U64(), ready: r.Bool(), endpoint: r.Blob(maxDescription)}
	return m, r.End()
}
