package bootstrap

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// defaultSettle is ElasticOptions.Settle if that is 0.
const defaultSettle = time.Second

// ElasticOptions configure an [Elastic].
type ElasticOptions struct {
	// Min and Max are the fewest and the most ranks of a generation. 0 means 1 for
	// Min, and [MaxSize] for Max. A Min above half of the usual number keeps ranks that
	// lost the others from going on as a second group.
	Min, Max int
	// Settle is how long the server waits for more ranks after the last that came. It
	// must be longer than ranks take to notice a failure one after the other. 0 means
	// a second.
	Settle time.Duration
	// ID is the id to serve, such as one of [NewUniqueID]. With the id of a server that has
	// ended, this one takes its place, and groups go on meanwhile. The zero id stands for
	// a new one.
	ID UniqueID
	// Logger receives refused strangers, and the generations. Nil discards.
	Logger *slog.Logger
}

// An Elastic is a server at which processes meet as a group again and again: after a
// rank was lost, or to take in new ones. Each group is a generation, a [Bootstrap] with
// a secret of its own. Processes come with [Member.Next].
//
// A generation forms when Settle has passed since the last process came, or at
// once when Max have come and nobody of the generation before is missing. While all of a
// generation are busy with it, processes that come later wait: the server tells its members
// (see [Member.Newcomers]), and forms the next when the first of them comes back. Members
// that do not come are left out, and hear of it.
//
// A member of the generation before keeps its rank where possible, and in any case the
// order; newcomers take the ranks between, in the order in which they came.
//
// A process that ends while it waits is left out, and holds up nobody. If it ends, or
// is stopped, later and before all ranks are connected, the generation fails: the
// others' Next returns an error, in the second case after Options.Timeout, and they call
// it again.
//
// Everyone who has the server's id can come, as to a [Rendezvous]. Each generation has
// a rendezvous on a port of its own, which the system chooses.
type Elastic struct {
	o    ElasticOptions
	id   UniqueID
	host string // where to listen
	log  *slog.Logger
	acc  *handshake.Acceptor

	member *handshake.Member

	mu         sync.Mutex
	generation uint64
	connected  map[*comer]bool // all, also the ones that were left out
	current    map[*comer]bool // of the generation, connected to the server, that have not come back
	comers     []*comer        // in the order in which they came
	timer      *time.Timer
	settles    time.Time
	meeting    *Rendezvous // of the generation
	closed     bool
}

// A comer is a process that is connected to an Elastic.
type comer struct {
	*conn
	process    [16]byte
	generation uint64 // its last, or 0
	rank       int    // in that
}

// NewElastic opens a server at addr, as [NewRendezvous] does. The caller closes it; groups
// that have formed stay.
//
// Errors: ErrInvalid for invalid options or an address that makes no sense, ErrSystem when
// it cannot listen there.
func NewElastic(addr string, o ElasticOptions) (*Elastic, error) {
	const op = "bootstrap: open an elastic rendezvous"
	if o.Min == 0 {
		o.Min = 1
	}
	if o.Max == 0 {
		o.Max = MaxSize
	}
	if o.Settle == 0 {
		o.Settle = defaultSettle
	}
	if o.Min < 1 || o.Max < o.Min || o.Max > MaxSize || o.Settle < 0 {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "from %d to %d ranks after %v; allowed are 1 to %d, and no negative time", o.Min, o.Max, o.Settle, MaxSize)
	}
	ln, hosts, err := listenAt(op, addr, "")
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	e := &Elastic{o: o, id: newID(hosts, uint16(ln.Addr().(*net.TCPAddr).Port), false), host: host, log: logger(o.Logger), connected: map[*comer]bool{}, current: map[*comer]bool{}}
	if !o.ID.IsZero() {
		e.id = o.ID
	}
	e.member = e.id.member(handshake.Either)
	e.acc = handshake.NewAcceptor("bootstrap", e.log, e.shake, ln)
	return e, nil
}

// ID returns the server's id, for [NewMember].
func (e *Elastic) ID() UniqueID { return e.id }

// Close stops the server. Processes that wait for a generation go on waiting for a server
// until their context ends. It is safe to call twice, and does nothing on nil.
func (e *Elastic) Close() error {
	if e == nil {
		return nil
	}
	e.acc.Stop()
	e.mu.Lock()
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	for c := range e.connected {
		c.endWithin(lingerTime)
	}
	meeting := e.meeting
	e.meeting = nil
	e.mu.Unlock()
	if meeting != nil {
		meeting.Close()
	}
	e.acc.Wait()
	return nil
}

// shake runs the handshake of a process.
func (e *Elastic) shake(raw net.Conn, _ func() error) (func() error, error) {
	nc, err := e.member.Server(raw, func(_ net.Conn, b []byte) error {
		_, err := decodeClaim(b, roleMember, toRendezvous)
		return err
	})
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Time{})
	return func() error { e.serve(&comer{conn: newConn(nc, &e.mu, nil, false)}); return nil }, nil
}

// serve keeps c until its connection ends.
func (e *Elastic) serve(c *comer) {
	e.mu.Lock()
	e.connected[c] = true
	if e.closed {
		c.endWithin(lingerTime)
	}
	e.mu.Unlock()
	err := c.conn.serve(func(f frame) error {
		if f.kind != frameCome {
			return fmt.Errorf("it sent a frame of kind %d", f.kind)
		}
		m, err := decodeCome(f.payload)
		e.mu.Lock()
		defer e.mu.Unlock()
		if err == nil && !e.closed {
			e.come(c, m)
		}
		return err
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lose(c, err)
}

// lose removes a process whose connection has ended. The caller holds mu.
func (e *Elastic) lose(c *comer, why error) {
	delete(e.connected, c)
	e.comers = slices.DeleteFunc(e.comers, func(other *comer) bool { return other == c })
	if e.current[c] {
		delete(e.current, c)
		if e.meeting != nil {
			e.meeting.Internal().Ended(c.rank, "has ended")
		}
	}
	if !e.closed {
		e.log.Info("bootstrap: a process left the elastic rendezvous", "generation", c.generation, "rank", c.rank, "error", why)
		e.consider()
	}
}

// come adds a process to the waiting ones. The caller holds mu.
func (e *Elastic) come(c *comer, m comeMessage) {
	same := func(other *comer) bool { return other != c && other.process == m.process }
	e.comers = slices.DeleteFunc(e.comers, same) // it lost that connection
	for other := range e.current {
		if same(other) {
			delete(e.current, other)
		}
	}
	delete(e.current, c)
	c.process, c.generation, c.rank = m.process, m.generation, m.rank
	e.generation = max(e.generation, m.generation) // of a server before this one
	if !slices.Contains(e.comers, c) {
		e.comers = append(e.comers, c)
		e.settles = time.Now().Add(e.o.Settle)
	}
	e.consider()
}

// survives reports whether a process is of the last generation.
func (e *Elastic) survives(c *comer) bool { return c.generation > 0 && c.generation == e.generation }

// consider forms a generation if it is time, and otherwise has itself called when it may
// be. The caller holds mu.
func (e *Elastic) consider() {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if len(e.current) > 0 && !slices.ContainsFunc(e.comers, e.survives) {
		if len(e.comers) > 0 && len(e.current) < e.o.Max {
			for c := range e.current {
				c.enqueue(frame{kind: frameNewcomers, tag: e.generation})
			}
		}
		return
	}
	if len(e.comers) < e.o.Min {
		return
	}
	if full := len(e.comers) >= e.o.Max && len(e.current) == 0; !full {
		if left := time.Until(e.settles); left > 0 {
			e.considerIn(left)
			return
		}
	}
	if err := e.form(); err != nil {
		e.log.Error("bootstrap: the elastic rendezvous cannot form a generation, and tries again", "error", err)
		e.settles = time.Now().Add(e.o.Settle)
		e.considerIn(e.o.Settle)
	}
}

func (e *Elastic) considerIn(d time.Duration) {
	e.timer = time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.closed {
			e.consider()
		}
	})
}

// form makes the next generation of the processes that came. The caller holds mu.
func (e *Elastic) form() error {
	a := assignment{generation: e.generation + 1}
	rand.Read(a.group[:])
	ln, err := net.Listen("tcp", net.JoinHostPort(e.host, "0"))
	if err != nil {
		return err
	}
	a.port = uint16(ln.Addr().(*net.TCPAddr).Port)
	before := e.meeting
	e.meeting = serveRendezvous(ln, e.id.generation(a), e.log)

	byRank, rest := arrange(e.comers, e.survives, e.o.Max)
	a.size = len(byRank)
	for c := range e.current {
		c.enqueue(frame{kind: frameLeftOut, tag: a.generation})
	}
	e.current = map[*comer]bool{}
	for rank, c := range byRank {
		a.rank = rank
		c.generation, c.rank = a.generation, rank
		e.current[c] = true
		c.enqueue(frame{kind: frameAssigned, payload: a.encode()})
	}
	e.generation, e.comers = a.generation, rest
	go before.Close() // its ranks are connected, or come again
	e.log.Info("bootstrap: a generation formed", "generation", a.generation, "ranks", a.size, "waiting", len(rest))
	return nil
}

// arrange returns who gets which rank, and who has to wait.
func arrange(comers []*comer, survives func(*comer) bool, most int) (byRank, rest []*comer) {
	var old, fresh []*comer
	for _, c := range comers {
		if survives(c) {
			old = append(old, c)
		} else {
			fresh = append(fresh, c)
		}
	}
	slices.SortFunc(old, func(a, b *comer) int { return cmp.Compare(a.rank, b.rank) })
	if len(old) > most {
		fresh = slices.Concat(old[most:], fresh)
		old = old[:most]
	}
	n := min(most, len(old)+len(fresh))
	byRank = make([]*comer, n)
	for i, c := range old {
		// Both rise with i, so the order stays, and there is room for those above.
		byRank[min(c.rank, n-len(old)+i)] = c
	}
	for rank := range byRank {
		if byRank[rank] == nil {
			byRank[rank], fresh = fresh[0], fresh[1:]
		}
	}
	return byRank, fresh
}
