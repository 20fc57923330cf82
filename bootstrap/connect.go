package bootstrap

import (
	"context"
	"crypto/rand"
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

// defaultTimeout is how long Connect waits for all ranks if Options.Timeout is
// zero.
const defaultTimeout = time.Minute

// Options describe this rank and its group.
type Options struct {
	Rank int      // from 0 to Size-1
	Size int      // the world size: how many ranks the group has
	ID   UniqueID // the same on all ranks

	// Timeout bounds Connect in addition to its context. 0 means a minute.
	Timeout time.Duration

	// HeartbeatTimeout is for how long a rank that has come to the rendezvous may give no
	// sign of life before the others take it for stopped.
	// A rank that has not come is not known to be stopped, unless the process that started it
	// says so: see [Rendezvous.Stopped]. 0 means DefaultHeartbeatTimeout, less than 0 for ever; at least 100 milliseconds.
	HeartbeatTimeout time.Duration

	// Interface names the network interface whose address the peers dial. By
	// default they dial the address from which this rank reaches the
	// rendezvous.
	Interface string

	// Advertise is the host name or address that the peers dial, if this machine
	// cannot find it out. The rank then listens on every address.
	Advertise string

	// TLS encrypts all traffic of the bootstrap with TLS 1.3, whose sessions the
	// group's secret authenticates. It must be the same on all ranks. Without it
	// traffic is neither encrypted nor signed.
	TLS bool

	// Logger receives refused strangers, and ranks that leave or fail. Nil
	// discards.
	Logger *slog.Logger
}

// check finds what is invalid without asking anyone.
func (o Options) check() error {
	switch {
	case o.Size < 1 || o.Size > MaxSize:
		return fmt.Errorf("world size %d, not from 1 to %d", o.Size, MaxSize)
	case o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("rank %d is outside a world of %d ranks, 0 to %d", o.Rank, o.Size, o.Size-1)
	case o.ID.IsZero():
		return errors.New("no unique id: make one with NewRendezvous or NewUniqueID, or use FromEnv")
	case o.Timeout < 0:
		return fmt.Errorf("timeout %v is negative", o.Timeout)
	case o.HeartbeatTimeout > 0 && o.HeartbeatTimeout < minHeartbeat:
		return fmt.Errorf("heartbeat time-out %v, at least %v", o.HeartbeatTimeout, minHeartbeat)
	case o.Interface != "" && o.Advertise != "":
		return fmt.Errorf("both Interface %q and Advertise %q are set", o.Interface, o.Advertise)
	case o.Advertise != "":
		return checkHost(o.Advertise)
	}
	return nil
}

const opConnect = "bootstrap: connect"

// Connect joins the group and returns when all its ranks have. It must be called
// once for each rank, in one process or in many, in any order. The caller closes
// the result.
//
// Ranks that do not fit together (two with one number, different world sizes)
// all get an ErrInvalid that names them. When the first rank's time is up, all
// ranks that came get an ErrTimeout that lists the missing ones. If all came, and one does not
// connect to the others, the ErrTimeout names it. If a rank dies meanwhile, all
// others get an ErrRemote whose peer it is; so they do if rank 0 lacks descriptors for the ranks at
// the rendezvous that it opens, which itself gets an ErrSystem. If no rank of
// this group answers at the id's address, the error is an ErrTimeout if nobody
// answers, and an ErrInvalid if somebody else does.
//
// Once Connect has returned, ctx has no effect.
func Connect(ctx context.Context, o Options) (*Bootstrap, error) {
	if err := o.check(); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, opConnect, "%w", err).At(o.Rank, mscclgo.NoRank)
	}
	o.Logger = logger(o.Logger)
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()

	var hosted *Rendezvous
	if o.ID.hosted && o.Rank == 0 {
		var err error
		if hosted, err = hostRendezvous(ctx, o.ID, o.Logger); err != nil {
			return nil, err
		}
		hosted.expect(o.Size)
	}
	b, nc, err := join(ctx, o, hosted)
	if err == nil {
		b.takeBack()
		err = b.assemble(ctx, nc)
		if err == nil {
			return b, nil
		}
		b.Close()
	}
	if hosted != nil {
		if ctx.Err() == nil {
			hosted.giveUp(err)
		}
		hosted.awaitRefused(ctx, 2*time.Second)
		hosted.Close()
	}
	return nil, err
}

// firstPause is between two attempts to reach a rendezvous, and each following pause is twice as long, up to lastPause.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// join meets the other ranks at the rendezvous, the connection to which it returns too.
func join(ctx context.Context, o Options, hosted *Rendezvous) (*Bootstrap, *place, error) {
	j := joiner{o: o, hosted: hosted, member: o.member(), addrs: o.ID.addrs(), broke: time.Now()}
	rand.Read(j.process[:])
	defer func() {
		if j.ln != nil {
			j.ln.Close()
		}
	}()
	trying := ctx
	if hosted != nil {
		j.addrs = []string{reachable(hosted.acc.Addr())}
		var end context.CancelFunc
		trying, end = hosted.unlessRefused(ctx)
		defer end()
	}
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		joins := j.joins
		table, p, err := j.attempt(trying)
		if err == nil {
			b := newBootstrap(o, j.member, table, j.ln, hosted)
			j.ln = nil
			return b, p, nil
		}
		if j.joins > joins {
			j.broke, pause = time.Now(), firstPause
		}
		if final := j.final(err); final != nil {
			return nil, nil, final
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if sleep(ctx, pause) != nil {
			return nil, nil, j.gaveUp(ctx, last)
		}
	}
}

// A joiner is a rank on its way into the group.
type joiner struct {
	o       Options
	hosted  *Rendezvous // as of Bootstrap
	member  *handshake.Member
	addrs   []string
	process [16]byte
	ln      net.Listener // where this rank's peers dial, once it is known
	bind    string       // the address of ln, or "" for all
	joins   int          // how often the rendezvous has received this rank's join
	broke   time.Time    // when the last connection on which it had broke, or the rank began
	short   time.Time    // since when this process lacks descriptors, or zero
}

// final returns the error with which the rank gives up after an attempt that failed, or nil if another is worth a try.
func (j *joiner) final(err error) error {
	if j.hosted != nil {
		if v := j.hosted.why(); v != nil {
			return j.o.refused(*v)
		}
	}
	if verdict := (*mscclgo.Error)(nil); errors.As(err, &verdict) {
		return verdict.At(j.o.Rank, verdict.Peer)
	}
	where := j.o.ID.Addr()
	switch {
	case (j.joins > 0 || j.o.ID.opened) && errors.Is(err, syscall.ECONNREFUSED) && time.Since(j.broke) > lostTime:
		holder, rank := "the rendezvous at "+where, mscclgo.NoRank
		if j.o.ID.hosted {
			holder, rank = "rank 0, which holds the rendezvous at "+where+",", 0
		}
		return mscclgo.Errorf(mscclgo.ErrRemote, opConnect, "%s was lost before all ranks had come: its process has ended: %w", holder, err).At(j.o.Rank, rank)
	case !handshake.Shortage(err):
		j.short = time.Time{}
	case j.short.IsZero():
		j.short = time.Now()
	case time.Since(j.short) > shortTime:
		return mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "this rank cannot connect to the rendezvous at %s, as its process lacks descriptors or memory: %w; raise its limits (ulimit -n)",
			where, err).At(j.o.Rank, mscclgo.NoRank)
	}
	return nil
}

// thisProgram returns a random number that is this process's, by which a rendezvous knows it again.
var thisProgram = sync.OnceValue(func() (id [16]byte) {
	rand.Read(id[:])
	return id
})

// gaveUp returns the error for a context that ended before the rendezvous answered.
func (j *joiner) gaveUp(ctx context.Context, last error) error {
	where := j.o.ID.Addr()
	var e *mscclgo.Error
	var foreign handshake.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		e = mscclgo.FromContext(ctx, opConnect, "canceled while waiting for the rendezvous at "+where)
	case errors.As(last, &foreign):
		e = mscclgo.Errorf(mscclgo.ErrInvalid, opConnect,
			"%s is not the rendezvous of this group; is the unique id stale? %w", where, last)
	case j.joins > 0:
		e = mscclgo.Errorf(mscclgo.ErrTimeout, opConnect,
			"the rendezvous at %s stopped answering before all ranks had come: %w", where, last)
	default:
		e = mscclgo.Errorf(mscclgo.ErrTimeout, opConnect,
			"nobody answers at %s; is the unique id stale, or has rank 0 not started? %w", where, last)
	}
	return e.At(j.o.Rank, mscclgo.NoRank)
}

// attempt asks the rendezvous once for the table of addresses. It returns the connection
// with the table.
func (j *joiner) attempt(ctx context.Context) ([]string, *place, error) {
	nc, err := j.dial(ctx, claim{role: roleJoin, from: uint32(j.o.Rank), to: toRendezvous})
	if err != nil {
		return nil, nil, err
	}
	p := newPlace(newConn(nc, new(sync.Mutex), nil, true))
	table, err := j.ask(ctx, p)
	if err == nil {
		return table, p, nil
	}
	if ctx.Err() != nil { // so that this rank is not taken for dead, and its place is free once it has returned
		p.enqueue(frame{kind: frameGoodbye})
		p.endWithin(goodbyeTime)
		for range p.heard {
		}
	}
	p.close()
	return nil, nil, errors.Join(err, ctx.Err())
}

// goodbyeTime is how long a rank that gives up waits until the rendezvous has heard that.
const goodbyeTime = 250 * time.Millisecond

// ask sends the join and receives the answer.
func (j *joiner) ask(ctx context.Context, p *place) ([]string, error) {
	host, err := j.listen(ctx, p.nc)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	m := joinMessage{
		size:    j.o.Size,
		tls:     j.o.TLS,
		silence: max(j.o.HeartbeatTimeout, 0),
		left:    left - min(left/10, 250*time.Millisecond), // to receive the verdict in time
		process: j.process,
		program: thisProgram(),
		addr:    net.JoinHostPort(host, strconv.Itoa(j.ln.Addr().(*net.TCPAddr).Port)),
	}
	p.enqueue(frame{kind: frameJoin, payload: m.encode()})
	j.joins++
	if m.silence > 0 && j.o.ID.hosted && j.o.Rank != 0 {
		p.watch(m.silence)
	}
	select {
	case f, more := <-p.heard:
		switch {
		case !more && p.silent.Load():
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, opConnect, "rank 0, which holds the rendezvous at %s, has given no sign of life for %v: is it stopped?",
				j.o.ID.Addr(), m.silence).At(j.o.Rank, 0)
		case !more:
			return nil, fmt.Errorf("waiting for the other ranks: %w", p.err)
		case f.kind == frameTable:
			return decodeTable(f.payload, j.o.Size)
		case f.kind == frameRefused:
			v, err := watch.DecodeFact(f.payload, MaxSize)
			if err != nil {
				return nil, err
			}
			return nil, j.o.refused(v)
		}
		return nil, fmt.Errorf("the rendezvous sent a frame of kind %d", f.kind)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refused returns this rank's error for a refusal, of which its launcher hears too. A fault of the system is one of a peer,
// unless it is this rank's.
func (o Options) refused(v watch.Fact) error {
	switch {
	case v.Kind == mscclgo.ErrSystem && v.Culprit() == o.Rank:
		v.Peers = nil
	case v.Kind == mscclgo.ErrSystem && v.Rank == toRendezvous:
		v.Kind = mscclgo.ErrRemote
	}
	o.report(v)
	switch {
	case v.Rank != toRendezvous:
		return v.Failed(opConnect, o.Rank)
	case v.Peer() == o.Rank:
		return mscclgo.Errorf(v.Kind, opConnect, "the rendezvous considers this rank failed: %s", v.Text).At(o.Rank, mscclgo.NoRank)
	}
	return mscclgo.Errorf(v.Kind, opConnect, "%s", v.Text).At(o.Rank, v.Peer())
}

// dial tries all addresses of the rendezvous at the same time and keeps the first
// connection whose other end proves to be it.
func (j *joiner) dial(ctx context.Context, as claim) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		nc  net.Conn
		err error
	}
	results := make(chan result, len(j.addrs))
	for _, addr := range j.addrs {
		go func() {
			nc, err := j.member.Dial(ctx, addr, as.encode())
			results <- result{nc, err}
		}()
	}
	var first net.Conn
	var errs []error
	for range j.addrs {
		r := <-results
		switch {
		case r.err != nil:
			errs = append(errs, r.err)
		case first == nil:
			first = r.nc
			cancel()
		default:
			r.nc.Close()
		}
	}
	if first != nil {
		return first, nil
	}
	return nil, errors.Join(errs...)
}

// listen opens the socket that this rank's peers dial, unless it is open there, and
// returns the host under which they reach it. nc is the connection to the rendezvous.
func (j *joiner) listen(ctx context.Context, nc net.Conn) (host string, err error) {
	ip := nc.LocalAddr().(*net.TCPAddr).IP
	bind := ""
	switch {
	case j.o.Advertise != "":
		host = j.o.Advertise
	case j.o.Interface != "":
		if ip, err = interfaceAddr(j.o.Interface, ip); err != nil {
			return "", mscclgo.Errorf(mscclgo.ErrInvalid, opConnect, "interface %q: %w", j.o.Interface, err)
		}
		host, bind = ip.String(), ip.String()
	default:
		if j.hosted != nil { // nc is within this machine
			if ip, err = routeTo(ctx, j.o.ID.addrs()[0]); err != nil {
				return "", err
			}
		}
		all, err := machineAddrs()
		if err != nil {
			return "", mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "cannot list this machine's addresses: %w", err)
		}
		ip, anywhere := visible(ip, j.o.ID.hosts, all)
		if host = ip.String(); !anywhere {
			bind = host
		}
	}
	if j.ln != nil && j.bind == bind {
		return host, nil
	}
	if j.ln != nil { // the rendezvous was reached over another interface before
		j.ln.Close()
	}
	j.bind = bind
	j.ln, err = net.Listen("tcp", net.JoinHostPort(bind, "0"))
	if err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, opConnect, "cannot listen for peers at %q: %w", bind, err)
	}
	return host, nil
}

// reachable returns the address at which this machine itself reaches a listener.
func reachable(a net.Addr) string {
	t := a.(*net.TCPAddr)
	if t.IP.IsUnspecified() {
		return net.JoinHostPort("localhost", strconv.Itoa(t.Port))
	}
	return t.String()
}
