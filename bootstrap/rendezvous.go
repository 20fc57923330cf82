package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// A Rendezvous is where the ranks of one group find each other. Each rank sends
// its number, the world size and its own address. When the last has come, all
// receive the table of addresses, and connect to each other. When all have, or one of them
// fails before that, the Rendezvous says so to all; then the group no longer needs it.
//
// [Connect] on rank 0 opens one for an id from [NewUniqueID] or the environment. A
// launcher, or a rank 0 that can pass its id to the others by other means, opens
// its own, and so has the port before any rank starts.
//
// Once all ranks of a group are connected, the same processes may meet again for another one,
// whether they have left the last one or not: another call of [Connect] on every rank. A process
// that was not in the last one is refused. The rendezvous that rank 0 opened in Connect is for one group;
// when that is closed, rank 0 opens another for the same id.
//
// A dialer that does not prove to have the id is refused and logged. Each rank
// that joins chooses whether it does so under TLS.
type Rendezvous struct {
	id  UniqueID
	log *slog.Logger
	acc *handshake.Acceptor

	member *handshake.Member

	mu         sync.Mutex
	used       int             // descriptors of this process when it began
	size       int             // the world size of the first rank that came
	largest    int             // of the world sizes that ranks came with
	tls        bool            // whether that rank, as all that have come, encrypts
	members    map[int]*member // that came, and have not left, until all are connected
	lost       map[int]*time.Timer
	addrs      []string        // of the ranks, when all have come
	refused    *watch.Fact     // why the group cannot form
	gaveUp     time.Time       // when refused was set
	heard      map[int]bool    // the ranks that were sent it
	met        [][16]byte      // the processes of the last group of which all had come, by rank
	ended      map[int]string  // of those, how the ones ended that were connected
	forming    context.Context // of a group, until no rank needs the rendezvous any more
	endForming context.CancelFunc
	closed     bool
}

// NewRendezvous listens at addr, "host:port", and returns the rendezvous of a
// new group. If the port is 0 the system chooses one. If the host is empty it
// listens on every address of this machine, and the id has the addresses that other
// machines may reach. A nil logger discards.
//
// The caller closes the rendezvous; a group that is complete stays.
func NewRendezvous(addr string, log *slog.Logger) (*Rendezvous, error) {
	return newRendezvous(addr, "", log)
}

// newRendezvous is NewRendezvous. If advertise is not empty the id has that host.
func newRendezvous(addr, advertise string, log *slog.Logger) (*Rendezvous, error) {
	const op = "bootstrap: open a rendezvous"
	ln, hosts, err := listenAt(op, addr, advertise)
	if err != nil {
		return nil, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return serveRendezvous(ln, newID(hosts, uint16(port), false), log), nil
}

// listenAt listens at addr, and returns the hosts for its id: advertise, unless it is
// empty.
func listenAt(op, addr, advertise string) (net.Listener, []string, error) {
	host, _, err := splitHostPort(addr)
	if err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "address %q: %w", addr, err)
	}
	hosts := []string{host}
	if advertise != "" {
		hosts = []string{advertise}
	} else if host == "" {
		if hosts, err = machineAddrs(); err != nil {
			return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot list this machine's addresses: %w", err)
		}
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot listen at %s: %w", addr, err)
	}
	return ln, hosts, nil
}

// hostRendezvous opens, on rank 0, the rendezvous of a hosted id. If the id has a
// name, which this machine may resolve to another address than its peers do, or an
// address that is not this machine's (a service's, for example), it listens on
// every address. It waits a short while for a port that an ending group still
// holds.
func hostRendezvous(ctx context.Context, id UniqueID, log *slog.Logger) (*Rendezvous, error) {
	const op = "bootstrap: open the rendezvous"
	wait, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var lc net.ListenConfig
	addr, anywhere := id.addrs()[0], ":"+strconv.Itoa(int(id.port))
	if net.ParseIP(id.hosts) == nil && !isLoopback(id.hosts) {
		addr = anywhere
	}
	for {
		ln, err := lc.Listen(wait, "tcp", addr)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			ln, err = lc.Listen(wait, "tcp", anywhere)
		}
		if err == nil {
			return serveRendezvous(ln, id, log), nil
		}
		if errors.Is(err, syscall.EADDRINUSE) && sleep(wait, 50*time.Millisecond) == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, mscclgo.FromContext(ctx, op, "while waiting for the port of "+addr).At(0, mscclgo.NoRank)
		}
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op,
			"cannot listen at %s; is another group using the port? Of one group, Split makes others. %w", addr, err).At(0, mscclgo.NoRank)
	}
}

func serveRendezvous(ln net.Listener, id UniqueID, log *slog.Logger) *Rendezvous {
	r := &Rendezvous{
		id: id, log: logger(log), member: id.member(handshake.Either),
		members: map[int]*member{}, lost: map[int]*time.Timer{}, heard: map[int]bool{},
		ended: map[int]string{}, used: handshake.Descriptors(),
	}
	r.forming, r.endForming = context.WithCancel(context.Background())
	r.acc = handshake.NewAcceptor("bootstrap", r.log, r.shake, ln)
	r.acc.WhenShort(shortTime, r.short)
	return r
}

// ID returns the group's id, for [Options].
func (r *Rendezvous) ID() UniqueID { return r.id }

func (r insideRendezvous) Over() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forming.Done()
}

// Close stops listening. Ranks that still wait for others get an ErrAborted. It
// is safe to call twice, and does nothing on nil.
func (r *Rendezvous) Close() error {
	if r == nil {
		return nil
	}
	r.acc.Stop()
	r.mu.Lock()
	why := refusal(mscclgo.ErrAborted, mscclgo.NoRank, "the rendezvous was closed before all ranks had come and were connected")
	if r.id.hosted {
		why = refusal(mscclgo.ErrAborted, 0, "rank 0, which holds the rendezvous, left before all ranks had come and were connected")
	}
	r.refuse(why)
	r.closed = true
	r.mu.Unlock()
	r.acc.Wait()
	return nil
}

// shake runs the handshake of a rank and reads its join.
func (r *Rendezvous) shake(raw net.Conn, _ func() error) (func() error, error) {
	var rank int
	nc, err := r.member.Server(raw, func(_ net.Conn, b []byte) (err error) {
		rank, err = decodeClaim(b, roleJoin, toRendezvous)
		return err
	})
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Now().Add(handshake.DefaultPatience))
	f, err := readFrame(nc)
	if err != nil {
		r.noJoin(rank, raw.RemoteAddr())
		return nil, fmt.Errorf("rank %d: waiting for its join: %w", rank, err)
	}
	if f.kind != frameJoin {
		return nil, fmt.Errorf("rank %d: a frame of kind %d instead of a join", rank, f.kind)
	}
	join, err := decodeJoin(f.payload)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", rank, err)
	}
	nc.SetDeadline(time.Time{})
	m := &member{conn: newConn(nc, &r.mu, nil, false), rank: rank, join: join, until: time.Now().Add(join.left)}
	return func() error { r.serve(m); return nil }, nil
}
