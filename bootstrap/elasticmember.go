package bootstrap

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// A Member is a process that takes part in the generations of an [Elastic].
type Member struct {
	o       Options
	member  *handshake.Member
	process [16]byte
	next    sync.Mutex // held by Next

	mu         sync.Mutex
	session    *session // nil if there is no connection
	boot       *Bootstrap
	connecting context.CancelCauseFunc // ends the Connect under way, or nil
	generation uint64
	rank       int
	newcomers  chan struct{} // closed when the server says so
	came       bool          // it is
	leftOut    uint64        // the generation that formed without this process
	closed     bool
	stay       context.Context // for each Next, until Leave
	stop       context.CancelCauseFunc
	wg         sync.WaitGroup
}

// A session is a Member's connection to the server.
type session struct {
	*conn
	assigned chan assignment
	ended    chan struct{} // closed with the connection
}

const opNext = "bootstrap: next generation"

// NewMember returns a process that can take part in the generations of the [Elastic] whose
// id the options have. Rank and Size must be 0: the server assigns them. Timeout bounds
// the connecting of a generation. The caller closes the member.
//
// Errors: ErrInvalid for invalid options.
func NewMember(o Options) (*Member, error) {
	const op = "bootstrap: make a member"
	whole := o
	whole.Size = 1
	err := whole.check()
	if err == nil && o.Size != 0 {
		err = errors.New("the server assigns rank and size, which must be 0")
	}
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	o.Logger = logger(o.Logger)
	m := &Member{o: o, member: o.member(), rank: mscclgo.NoRank, newcomers: make(chan struct{})}
	rand.Read(m.process[:])
	m.stay, m.stop = context.WithCancelCause(context.Background())
	return m, nil
}

// Generation returns the number of the last generation that this process was assigned
// to, from 1, or 0.
func (m *Member) Generation() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.generation
}

// Newcomers returns a channel that is closed when processes wait to be taken in by the
// generation that this process is in. The members then agree, at a time that suits them,
// to call Next. Each generation has a channel of its own.
func (m *Member) Newcomers() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newcomers
}

// Next comes to the server, waits for a generation that includes this process, and
// connects to its ranks. The [Bootstrap] is the caller's, and so is the one of the
// generation before, which should have failed or be over for all its ranks: when the next
// forms without this process, that is aborted.
//
// It waits for the server, and for a generation, until ctx ends. Where the others have gone on to a further
// generation before it was connected, as it was stopped for a while, it waits for the one after that.
//
// Errors: ErrTimeout and ErrAborted when ctx ends; ErrAborted for [Member.Leave]; the errors of
// [Connect], after which Next may be called again.
func (m *Member) Next(ctx context.Context) (*Bootstrap, error) {
	m.next.Lock()
	defer m.next.Unlock()
	m.mu.Lock()
	stay, closed := m.stay, m.closed
	m.mu.Unlock()
	if closed {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opNext, "the member is closed")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(stay, func() { cancel(context.Cause(stay)) })()
	for {
		a, err := m.await(ctx)
		if err != nil {
			return nil, err
		}
		b, err := m.join(ctx, a)
		if !errors.Is(err, errLeftOut) {
			return b, err
		}
	}
}

// errLeftOut is the cause of the end of a Connect whose generation the others have given up: they went on with the next.
var errLeftOut = errors.New("the others went on without this rank")

// join connects to the other ranks of a generation.
func (m *Member) join(ctx context.Context, a assignment) (*Bootstrap, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m.mu.Lock()
	m.connecting = cancel
	if m.leftOut > a.generation { // this process was stopped meanwhile, for example
		cancel(errLeftOut)
	}
	m.mu.Unlock()
	o := m.o
	o.Rank, o.Size, o.ID = a.rank, a.size, m.o.ID.generation(a)
	b, err := Connect(ctx, o)
	m.mu.Lock()
	m.connecting, m.boot = nil, b
	late := m.leftOut > a.generation
	m.mu.Unlock()
	switch {
	case late && err == nil:
		m.abort(b, a.generation)
	case late:
		err = errors.Join(errLeftOut, err)
	}
	return b, err
}

// await returns this process's place in the next generation.
func (m *Member) await(ctx context.Context) (assignment, error) {
	const none = "no generation formed"
	late := none
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		s, err := m.connect(ctx)
		if err == nil {
			var a assignment
			if a, err = m.ask(ctx, s); err == nil {
				return a, nil
			}
			pause = firstPause
		}
		if verdict := (*mscclgo.Error)(nil); errors.As(err, &verdict) {
			return assignment{}, err
		}
		if ctx.Err() == nil || late == none {
			late = fmt.Sprintf("no server answered (%v)", err)
		}
		sleep(ctx, pause)
	}
	return assignment{}, mscclgo.FromContext(ctx, opNext, late+" at "+m.o.ID.Addr()).At(mscclgo.NoRank, mscclgo.NoRank)
}

// connect returns the connection to the server, which it makes if there is none.
func (m *Member) connect(ctx context.Context) (*session, error) {
	m.mu.Lock()
	s := m.session
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	j := joiner{o: m.o, member: m.member, addrs: m.o.ID.addrs()}
	nc, err := j.dial(ctx, claim{role: roleMember, to: toRendezvous})
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Time{})
	s = &session{conn: newConn(nc, &m.mu, nil, true), assigned: make(chan assignment, 1), ended: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = s
	m.wg.Go(func() { m.listen(s) })
	return s, nil
}

// ask comes to the server and waits for an assignment.
func (m *Member) ask(ctx context.Context, s *session) (assignment, error) {
	m.mu.Lock()
	come := comeMessage{m.process, m.generation, m.rank}
	m.mu.Unlock()
	s.enqueue(frame{kind: frameCome, payload: come.encode()})
	select {
	case a := <-s.assigned:
		return a, nil
	case <-s.ended:
		return assignment{}, errors.New("the connection to the server ended")
	case <-ctx.Done():
		s.nc.Close() // this process waits no longer
		<-s.ended
		return assignment{}, mscclgo.FromContext(ctx, opNext, "no generation formed; the server waits for more ranks, or for ranks of the last that have not come back")
	}
}

// listen receives what the server says.
func (m *Member) listen(s *session) {
	err := s.serve(func(f frame) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.hear(s, f)
	})
	if err != io.EOF && !errors.Is(err, net.ErrClosed) {
		m.o.Logger.Warn("bootstrap: the connection to the elastic rendezvous ended", "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == s {
		m.session = nil
	}
	close(s.ended)
}

// hear notes what the server says. The caller holds mu.
func (m *Member) hear(s *session, f frame) error {
	switch f.kind {
	case frameAssigned:
		a, err := decodeAssignment(f.payload)
		if err != nil {
			return err
		}
		m.generation, m.rank, m.boot = a.generation, a.rank, nil
		m.newcomers, m.came = make(chan struct{}), false
		select {
		case s.assigned <- a:
		default:
			return errors.New("two assignments")
		}
	case frameNewcomers:
		if f.tag == m.generation && !m.came {
			m.came = true
			close(m.newcomers)
		}
	case frameLeftOut:
		m.leftOut = max(m.leftOut, f.tag)
		if m.connecting != nil && m.generation < f.tag {
			m.connecting(errLeftOut)
		}
		if b, g := m.boot, m.generation; b != nil && g < f.tag {
			m.wg.Go(func() { m.abort(b, g) })
		}
	default:
		return fmt.Errorf("a frame of kind %d", f.kind)
	}
	return nil
}

// abort fails a generation that this process was left out after.
func (m *Member) abort(b *Bootstrap, generation uint64) {
	b.Abort(mscclgo.Errorf(mscclgo.ErrAborted, opNext,
		"the others went on without this rank after generation %d: it did not come back in time; call Next to come again", generation).At(b.rank, mscclgo.NoRank))
}

// Leave has this process leave the server until Next is called again. A Next that waits ends,
// with ErrAborted. Bootstraps stay the caller's.
func (m *Member) Leave() {
	m.mu.Lock()
	m.stop(errors.New("the member leaves"))
	m.mu.Unlock()
	m.next.Lock()
	defer m.next.Unlock()
	m.mu.Lock()
	s := m.session
	m.stay, m.stop = context.WithCancelCause(context.Background())
	m.mu.Unlock()
	if s != nil {
		s.nc.Close()
		<-s.ended
	}
}

// Close leaves the server for good: a Next that is under way ends, as with Leave. It is safe to call twice, and does
// nothing on nil.
func (m *Member) Close() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.Leave()
	m.wg.Wait()
	return nil
}
