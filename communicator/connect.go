package communicator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Connect returns a connection to a peer, over which the host moves data without a
// kernel. If the group has failed, its error comes before the connection's, which may
// only be a consequence. Both ranks call it with the same tag, which is below 1<<63 and not in use
// for messages of the bootstrap. After an error both may call it again with that tag.
// The caller closes the connection before the communicator.
//
// Errors: ErrTimeout, naming the peer, when it does not call Connect in time;
// ErrInvalid for a peer outside the group or a tag out of range; as for [connection.Endpoint].
func (c *Communicator) Connect(ctx context.Context, peer int, tag uint64) (*connection.Connection, error) {
	op := fmt.Sprintf("communicator: connect to rank %d", peer)
	if err := c.usable(op); err != nil {
		return nil, err
	}
	if peer < 0 || peer >= c.Size() {
		return nil, c.invalid(op, "the group has %d ranks", c.Size())
	}
	if tag >= ownTags {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the tag %d is not below 1<<63", tag).At(c.Rank(), peer)
	}
	m := newMeeting(c, "Connect", op, peer, tag, maxDescription)
	m.missing = fmt.Sprintf("it does not connect to this rank with the tag %d; both call Connect with one tag", tag)
	var conn *connection.Connection
	err := c.waitIn(m.name, op, peer, func() (err error) {
		conn, err = m.connect(ctx)
		return err
	})
	if err != nil { // perhaps of the context, which the group's failure ended
		return nil, c.ours(c.causeFirst(err))
	}
	conn.Internal().Explain(c.causeFirst)
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
	theirs, err := m.exchange(ctx, mine, nil)
	if err != nil {
		return nil, err
	}
	var conn *connection.Connection
	err = m.part(ctx, func(ctx context.Context) error {
		conn, err = endpoint.Connect(ctx, theirs)
		return err
	})
	if err != nil && conn != nil {
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// meeting is one exchange of messages with the peer, for a call of two ranks. A call that
// ended early leaves messages behind, so each one has a number, and both ranks wait until
// they have seen each other's latest.
type meeting struct {
	c            *Communicator
	name         string // of the call
	op, missing  string // for errors: the call, and what the peer has not done if it does not come
	peer         int
	tag          uint64
	most         int    // bytes of the content that the peer may send
	mine, theirs uint64 // the numbers; theirs is 0 until it is known
	met          bool   // the peer knows this rank's number, and this rank the peer's
	outcome      *error // how the call ended for a rank that has done its part; nil before
}

func newMeeting(c *Communicator, name, op string, peer int, tag uint64, most int) *meeting {
	return &meeting{c: c, name: name, op: op, peer: peer, tag: tag, most: most, mine: rand.Uint64() | 1}
}

// lastWords is how long a rank takes at most to tell the peer that its part failed.
const lastWords = time.Second

// meetingMessage is a message of a call of two ranks.
type meetingMessage struct {
	from, to uint64 // the numbers of the sender's call and of the receiver's
	ready    bool   // the sender has done its part, unless it failed
	failed   watch.FailedPart
	content  []byte
}

var meetingWire = wire.For[meetingMessage]()

// exchange sends what this rank has for the peer, and returns what the peer has. If failed is not nil, this
// rank has nothing: then the call fails on both.
func (m *meeting) exchange(ctx context.Context, content []byte, failed error) (theirs []byte, err error) {
	if m.peer == m.c.Rank() {
		return content, failed
	}
	mine := meetingMessage{content: content, failed: watch.FailedPartOf(failed)}
	theirs, err = m.swap(ctx, mine)
	if failed != nil {
		return nil, failed
	}
	if errors.Is(err, mscclgo.ErrTimeout) && !m.met {
		err = mscclgo.Errorf(mscclgo.ErrTimeout, m.op, "%s: %w", m.missing, err).At(m.c.Rank(), m.peer)
	}
	return theirs, err
}

// swap is exchange of messages, of which each rank sends its own twice: it tells the peer's number when that is known.
func (m *meeting) swap(ctx context.Context, mine meetingMessage) (theirs []byte, err error) {
	if err := m.send(ctx, mine); err != nil {
		return nil, err
	}
	for {
		in, err := m.receive(ctx)
		if err != nil {
			return nil, err
		}
		if !in.ready && in.from != m.theirs {
			m.theirs, theirs = in.from, in.content
			if err := m.send(ctx, mine); err != nil {
				return nil, err
			}
		}
		if !in.ready && in.to == m.mine {
			m.met = true
			return theirs, m.peerFailed(in.failed)
		}
	}
}

// part does this rank's part, and waits until the peer has done its own. A part that waits for the peer
// must end when its context does: it is cancelled when the peer tells that its own failed. Then that is the error.
// A rank whose own part failed waits for nothing.
func (m *meeting) part(ctx context.Context, do func(context.Context) error) error {
	if m.peer == m.c.Rank() {
		return do(ctx)
	}
	doing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	listening, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := m.await(listening)
		if watch.OfFailedPart(err) {
			cancel(err)
		}
		ended <- err
	}()
	failed := do(doing)
	if errors.Is(failed, mscclgo.ErrRemote) {
		m.c.awaitNews() // a peer that has heard of a failure, or whose part failed, closes its sockets
	}
	if why := context.Cause(doing); failed != nil && watch.OfFailedPart(why) {
		failed = why
	} else {
		failed = m.ready(ctx, failed)
	}
	if failed != nil {
		stop()
		<-ended // nobody takes a message of a later call
		return failed
	}
	m.c.receive(m.peer, m.tag)
	return <-ended
}

// await waits until the peer has done its part.
func (m *meeting) await(ctx context.Context) error {
	for {
		in, err := m.receiveNext(ctx)
		if err != nil {
			return m.unfinished(err)
		}
		if over, err := m.done(in); over {
			return err
		}
	}
}

// ready tells the peer that this rank has done its part, or why it failed. It returns the failure too.
func (m *meeting) ready(ctx context.Context, failed error) error {
	if failed != nil { // perhaps of the context
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		defer cancel()
	}
	return errors.Join(failed, m.unfinished(m.send(ctx, meetingMessage{ready: true, failed: watch.FailedPartOf(failed)})))
}

// unfinished returns the error of a rank that has done its part and does not hear that the peer has, else nil.
func (m *meeting) unfinished(err error) error {
	if err == nil || m.c.boot.Err() != nil { // which names the rank to blame
		return err
	}
	return mscclgo.Errorf(mscclgo.KindOf(err), m.op, "it has not told that its part is done: %w", err).At(m.c.Rank(), m.peer)
}

// done reports whether a message ends the call of a rank that has done its part, and the error with which it does.
func (m *meeting) done(in meetingMessage) (over bool, err error) {
	switch {
	case in.from != m.theirs:
		err = m.peerFailed(watch.FailedPart{Kind: mscclgo.ErrRemote, Text: "it calls " + m.name + " again"})
	case in.ready && in.to == m.mine:
		err = m.peerFailed(in.failed)
	default:
		return false, nil
	}
	m.outcome = &err
	return true, err
}

// resume is what is left of a call whose context ended when this rank had done its part.
func (m *meeting) resume(ctx context.Context) error {
	if m.outcome != nil {
		return *m.outcome
	}
	if err := m.ready(ctx, nil); err != nil {
		return err
	}
	m.c.receive(m.peer, m.tag)
	return m.await(ctx)
}

// peerFailed returns the error of a peer's part that failed, else nil.
func (m *meeting) peerFailed(part watch.FailedPart) error {
	if part.Kind == 0 {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrRemote, m.op, "its part failed: %w", &part).At(m.c.Rank(), m.peer)
}

func (m *meeting) send(ctx context.Context, out meetingMessage) error {
	out.from, out.to = m.mine, m.theirs
	err := m.c.boot.Send(ctx, m.peer, m.tag, meetingWire.Marshal(&out))
	m.c.sent(m.peer, m.tag)
	return err
}

func (m *meeting) receive(ctx context.Context) (meetingMessage, error) {
	m.c.receive(m.peer, m.tag)
	return m.receiveNext(ctx)
}

// receiveNext is receive without the explorer. Any goroutine may call it.
func (m *meeting) receiveNext(ctx context.Context) (meetingMessage, error) {
	b, err := m.c.boot.Recv(ctx, m.peer, m.tag)
	if err != nil {
		return meetingMessage{}, err
	}
	in, err := meetingWire.Unmarshal(b)
	if err == nil && len(in.content) > m.most {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(in.content), m.most)
	}
	if err != nil {
		return in, mscclgo.Errorf(mscclgo.ErrRemote, m.op, "its message is malformed: %w", err).At(m.c.Rank(), m.peer)
	}
	return in, nil
}
