package communicator

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/grace"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// observer tells the other ranks what this one does, by its host's board, and knows
// what they tell. Its user calls tick regularly.
type observer struct {
	rank, size int
	now        func() time.Time
	observed
	namespace uint64        // of process ids, 0 if unknown
	host      string        // the machine's name
	compare   time.Duration // how often leaders exchange what they know

	mu         sync.Mutex
	board      *watch.Board // nil before join and after leave
	stop       func()       // ends the exchange with other hosts; nil before start
	owners     []int        // the leader of each rank's host
	hostRanks  []int        // see Communicator.HostRanks
	beat       uint64
	status     []byte                 // this rank's
	notes      deviceNotes            // as they were
	waits      map[uint64]*deviceWait // of this rank's kernels, by what they are for
	services   []*service
	exchanging ownExchange
	pairs      []*ownPair
	lives      []life            // of all ranks
	leaders    map[int]time.Time // when a leader of another host was last heard
	ticked     time.Time         // when this rank last ticked, at first when it joined
	question   uint64            // the last that was heard
	asked      time.Time         // when that was
	woken      chan struct{}     // closed at the next one
	querying   atomic.Bool       // see queryStreams
	launched   []watch.Launch    // before any wait had passed its deadline
	extra      time.Duration     // by which the deadlines of waits are put off; see putOff
	extended   time.Time         // when that was set
	still      ownStill
	branch     *branch // its place among groups that came of each other
	mutes      []bool  // the ranks that were mute when this one left, nil before
}

// observed is what an observer knows its rank by.
type observed struct {
	timeout, heartbeat time.Duration // as in Options
	deadlocks          bool          // Options.FindDeadlocks
	boot               fullBootstrap
	left               func(rank int) bool              // of the bootstrap, which closes when what was queued for peers has arrived
	dev                *gpu.Device                      // or nil
	launches           inside.LaunchGroup               // the group's
	calls              *atomic.Pointer[watch.Calls]     // see Communicator.calls
	nameOf             func(channel uint32) channelName // see Communicator.nameOf
	lossy              func(now time.Time) []watch.Wait // see Communicator.lossyLinks
	delay              func(deadlines time.Duration)    // see failure.putOff
	fail               func(error)                      // fails the group
}

// life is what is known of a rank's beat.
type life struct {
	beat  uint64
	moved time.Time
}

// deviceNotes are what kernels write about their waits.
type deviceNotes struct {
	waits  [layout.WaitNotes]layout.WaitNote
	failed bool // a wait has passed its deadline
}

// deviceWait is a wait that a note tells of.
type deviceWait struct {
	lasted   time.Duration // when it was seen to go on
	longest  time.Time     // when that was; a new wait for the same counts noteFresh later
	number   uint64        // of the signal, or 0
	seen     time.Time
	timedOut bool
	moves    int // of its note

	endless time.Time // when it first went on though the peer had left
	after   int       // the moves until then
}

// service is a proxy service of this rank.
type service struct {
	proxy    weak.Pointer[proxyservice.ProxyService]
	position uint64 // of the trigger that it was seen to serve
	since    time.Time
	kind     uint8
	serves   bool
	taken    uint64 // see Still of inside.Service
	rounds   uint64 // at the last of this rank's own moments, or when taken was first seen
}

const (
	// noteFresh is how long a wait counts as going on after its note has moved. Kernels
	// write notes every 4 ms; on the emulated device they may have to wait for a CPU. So long does
	// one count that has ended, too, also if the next kernel waits for the same: a wait that
	// passed its deadline may have let the rank's next kernel do what ended others.
	noteFresh = 300 * time.Millisecond
	// quietShare is the part of the heartbeat time-out after which a rank is suspected: it may soon count as silent.
	quietShare = 4
	// endedAfter is for how long a rank whose process has ended has given no sign of life until this rank
	// says so: the bootstrap, which may know why the process ended, is first where it can be.
	endedAfter = 500 * time.Millisecond
	// mostStuck is how long a wait or a handler that a failed wait leads to has lasted
	// to count as stuck itself, at most.
	mostStuck = 500 * time.Millisecond
)

// newObserver returns the observer of a rank in a group of so many, whose place among groups is br, or nil for a group
// that came of no other.
func newObserver(rank, size int, now func() time.Time, br *branch, about observed) *observer {
	if br == nil {
		br = newBranch(size)
	}
	return &observer{
		rank: rank, size: size, now: now, observed: about, branch: br, namespace: procfs.Namespace(), host: watch.HostName(),
		compare: compareInterval, waits: map[uint64]*deviceWait{}, leaders: map[int]time.Time{}, woken: make(chan struct{}),
	}
}

// join begins to write to the board and to read it. owners are the leaders of all ranks, and
// leaders are the other hosts' leaders that this rank hears. All ranks have come so far that they
// join too, so that their silence counts from now on.
func (o *observer) join(b *watch.Board, owners, hostRanks, leaders []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.board, o.owners, o.hostRanks, o.status = b, owners, hostRanks, nil
	now := o.now()
	if o.branch.outer == o.branch {
		o.branch.observe(o)
	}
	o.ticked = now // if the first tick is late, so perhaps are other ranks' ticks
	o.lives = slices.Repeat([]life{{moved: now}}, len(owners))
	for _, rank := range leaders {
		o.leaders[rank] = now
	}
	o.status = o.own(watch.Call{}, now).Encode()
	b.Report(o.rank, o.status)
	o.beat++
	b.Beat(o.rank, o.beat)
}

// leave says on the board that this rank is gone, and does not use it any more.
func (o *observer) leave() {
	if o.stop != nil {
		o.stop()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board != nil {
		o.mutes = make([]bool, len(o.lives)) // for what this rank closes later
		for rank := range o.mutes {
			o.mutes[rank] = o.isMute(rank)
		}
		o.board.Beat(o.rank, watch.Gone)
		o.board = nil
	}
	o.leaveTree()
}

// serves adds a proxy service of this rank, which it does not keep alive.
func (o *observer) serves(s *proxyservice.ProxyService) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.services = append(o.services, &service{proxy: weak.Make(s)})
}

// tick looks at this rank's kernels, whose notes are read by a function, and proxies, and tells
// the others. It returns the verdict if a rank gives no sign of life, or a wait cannot end.
func (o *observer) tick(read func() *deviceNotes) (watch.Verdict, bool) {
	last := o.calls.Load().Last()
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	notes := o.readLaunches(read)
	o.readNotes(notes, now)
	o.readServices(now)
	if o.board == nil {
		return watch.Verdict{}, false
	}
	o.hearQuestion()
	o.putOff(now)
	o.askEarly(now)
	o.readStill()
	own := o.own(last, now)
	o.tell(own, now)
	elsewhere := o.elsewhere(now)
	own.Waits = append(own.Waits[:min(len(own.Waits), watch.MaxWaits-len(elsewhere))], elsewhere...)
	if status := own.Encode(); !bytes.Equal(status, o.status) {
		o.status = status
		o.board.Report(o.rank, status)
	}
	o.beat = max(o.beat+1, uint64(max(now.UnixMilli(), 0))) // by which mscclgo ps knows how old it is
	o.board.Beat(o.rank, o.beat)
	o.listen(now)
	if !o.silent(now) && !o.ended(now) {
		return o.endless(now)
	}
	return watch.Dead(o.ranks(now), watch.Limits{Silence: o.heartbeat})
}

// readNotes updates the waits by the notes that have changed. The caller holds mu.
func (o *observer) readNotes(notes *deviceNotes, now time.Time) {
	for i, n := range notes.waits {
		if n == o.notes.waits[i] {
			continue
		}
		_, _, _, timedOut := layout.ParseWaitNote(n.What)
		what := n.What &^ (1 << 63)
		w := o.waits[what]
		if w == nil {
			w = &deviceWait{}
			o.waits[what] = w
		}
		// Words of two waits may be mixed.
		if lasted := max(time.Duration(n.Last-n.Start), 0); lasted >= w.lasted || timedOut || now.Sub(w.longest) > noteFresh {
			w.lasted, w.longest, w.number = lasted, now, n.Awaited()
		}
		w.seen, w.timedOut = now, w.timedOut || timedOut
		w.moves++
	}
	o.notes = *notes
	maps.DeleteFunc(o.waits, func(_ uint64, w *deviceWait) bool { return !w.timedOut && now.Sub(w.seen) > noteFresh })
}

const (
	// endlessAfter and endlessMoves are for how long, and how many notes, a wait goes on
	// after its peer has left until that is proved: a note may be of a wait that has just
	// ended, or mixed from two.
	endlessAfter = 100 * time.Millisecond
	endlessMoves = 3
)

// endless returns the verdict of a wait of this rank's kernels for a rank that has left: no
// signal of that rank can come. The caller holds mu.
func (o *observer) endless(now time.Time) (watch.Verdict, bool) {
	for what, known := range o.waits {
		w := o.noted(what, known)
		switch {
		case w.Kind == watch.Ring || w.Ended || !o.left(w.Peer):
		case known.endless.IsZero():
			known.endless, known.after = now, known.moves
		case now.Sub(known.endless) >= endlessAfter && known.moves >= known.after+endlessMoves:
			return watch.Endless(o.rank, w), true
		}
	}
	return watch.Verdict{}, false
}

// noted returns a wait as it was when its note was last read. The caller holds mu.
func (o *observer) noted(what uint64, known *deviceWait) watch.Wait {
	channel, peer, block, _ := layout.ParseWaitNote(what)
	w := o.waitOf(channel, peer)
	w.Block, w.Ended, w.For = block, known.timedOut, known.lasted
	if w.Kind == watch.Signal {
		w.Number = known.number
	}
	return w
}

// waitOf returns a wait by the numbers that handles have. The caller holds mu.
func (o *observer) waitOf(channel, peer int) watch.Wait {
	w := watch.Wait{Peer: peer}
	switch channel {
	case groupChannel:
		w.Kind = watch.Barrier
	case hostGroupChannel, runnersChannel:
		w.Kind, w.Peer = watch.Host, mscclgo.NoRank
		if peer < len(o.hostRanks) {
			w.Peer = o.hostRanks[peer]
		}
	case ringChannel:
		w.Kind = watch.Ring
	case layout.RoomChannel:
		w.Kind = watch.Room
	case layout.MessageChannel:
		w.Kind = watch.Message
	default:
		named := o.nameOf(uint32(channel))
		w.Channel, w.Name, w.Index = uint32(channel), named.name, named.block
	}
	return w
}

// readServices updates what the proxies serve. The caller holds mu.
func (o *observer) readServices(now time.Time) {
	o.services = slices.DeleteFunc(o.services, func(s *service) bool {
		proxy := s.proxy.Value()
		if proxy == nil {
			return true
		}
		// One that is closed does nothing any more. A look at it while the garbage collector marks would keep
		// it, with its connections: each time, where there is so much memory that marking takes longer than a tick.
		if rounds, _, done := proxy.Internal().Still(); done && rounds == inside.ProxyEnded {
			return true
		}
		position, kind, serves := proxy.Serving()
		if !serves || !s.serves || position != s.position {
			s.since = now
		}
		s.position, s.kind, s.serves = position, kind, serves
		return false
	})
}

// own returns this rank's status. The caller holds mu.
func (o *observer) own(last watch.Call, now time.Time) *watch.Status {
	s := &watch.Status{Process: uint32(os.Getpid()), Namespace: o.namespace, Host: o.host, Call: last.Number, CallDigest: last.Digest, CallText: last.Text}
	o.exchanging.describe(s, now)
	for _, p := range o.services {
		if serving := now.Sub(p.since); p.serves && serving > s.Serving {
			s.Serving, s.Trigger = serving, p.kind
		}
	}
	for what, known := range o.waits {
		w := o.noted(what, known)
		if !w.Ended {
			w.For += now.Sub(known.seen)
		}
		s.Waits = append(s.Waits, w)
	}
	s.Waits = append(s.Waits, o.pairWaits(last, now)...)
	s.Waits = append(s.Waits, o.lossy(now)...)
	slices.SortFunc(s.Waits, tellingFirst)
	// One block tells as much as all of them: in a group, the last one, which another rank may not have.
	for i := len(s.Waits) - 1; i > 0; i-- {
		if a, b := &s.Waits[i-1], s.Waits[i]; sameThing(*a, b) && a.Ended == b.Ended && (b.Kind == watch.Barrier || b.Kind == watch.Host) {
			a.Block = max(a.Block, b.Block)
		}
	}
	s.Waits = slices.CompactFunc(s.Waits, sameThing)
	slices.SortStableFunc(s.Waits, func(a, b watch.Wait) int { return cmp.Compare(b.For, a.For) })
	s.Waits = s.Waits[:min(len(s.Waits), watch.MaxWaits)]
	s.Launches = o.launched
	s.Still = o.still.last
	if o.dev != nil {
		s.Device = o.dev.String()
		for _, b := range o.dev.Internal().Busy() {
			if lasted := now.Sub(b.Since); s.Busy == "" || b.Compiles && !s.Compiles {
				s.Busy, s.BusyFor, s.Compiles = b.What, max(lasted, 1), b.Compiles
			}
		}
	}
	return s
}

// sameThing reports whether two waits of a rank are for the same, perhaps in different blocks.
func sameThing(a, b watch.Wait) bool {
	return a.Kind == b.Kind && a.Channel == b.Channel && a.Peer == b.Peer && a.Name == b.Name
}

// tellingFirst orders waits by what they are for, and those for one thing by how long
// they have lasted.
func tellingFirst(a, b watch.Wait) int {
	ended := func(w watch.Wait) int {
		if w.Ended {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Peer, b.Peer),
		cmp.Compare(ended(a), ended(b)), cmp.Compare(b.For, a.For), cmp.Compare(a.Block, b.Block))
}

// listen notes whose beats have moved. After a gap in which this rank did not run, the silence of its
// host's ranks counts from then on, as they perhaps had no CPU either. The silence of a rank that is seen to
// be stopped goes on, without the gap. grace.AfterGap says how it goes on at other hosts. The caller holds mu.
func (o *observer) listen(now time.Time) {
	if gap := now.Sub(o.ticked); o.heartbeat > 0 && gap > o.heartbeat/grace.GapShare {
		for i := range o.lives {
			switch l := &o.lives[i]; {
			case o.owners[i] != o.owners[o.rank]:
				l.moved = grace.AfterGap(l.moved, now, gap, o.heartbeat)
			case o.stopped(i):
				l.moved = l.moved.Add(gap)
			default:
				l.moved = now
			}
		}
		for rank, heard := range o.leaders {
			o.leaders[rank] = grace.AfterGap(heard, now, gap, o.heartbeat)
		}
	}
	o.ticked = now
	for rank := range o.lives {
		if beat := o.board.BeatOf(rank); beat != o.lives[rank].beat {
			o.lives[rank] = life{beat, now}
		}
	}
}

// stopped reports whether a rank's process is seen to be stopped. The caller holds mu.
func (o *observer) stopped(rank int) bool {
	s := o.board.StatusOf(rank)
	return s != nil && o.sees(rank, s) && procfs.Stopped(int(s.Process))
}

// sees reports whether this rank can see the process of one with that status.
func (o *observer) sees(rank int, s *watch.Status) bool {
	return o.owners[rank] == o.owners[o.rank] && s.Namespace == o.namespace && o.namespace != 0
}

// silence returns how long a rank has given no sign of life, or 0 if that cannot be
// known here. The caller holds mu.
func (o *observer) silence(rank int, now time.Time) time.Duration {
	if heard, ok := o.leaders[rank]; ok {
		return now.Sub(heard)
	}
	l := o.lives[rank]
	if rank == o.rank || o.owners[rank] != o.owners[o.rank] || l.beat == watch.Gone {
		return 0 // its own host's ranks will know
	}
	return now.Sub(l.moved)
}

// silent reports whether a rank has been silent for too long. The caller holds mu.
func (o *observer) silent(now time.Time) bool {
	if o.heartbeat < 0 {
		return false
	}
	for rank := range o.lives {
		if o.silence(rank, now) >= o.heartbeat {
			return true
		}
	}
	return false
}

// ended reports whether a rank of this host has ended without leaving. Others hear of that at once by its
// connections, unless the ranks to which these lead are stopped, or a child of its process keeps them open. The
// caller holds mu.
func (o *observer) ended(now time.Time) bool {
	for rank, l := range o.lives {
		if l.beat == watch.Gone || now.Sub(l.moved) < endedAfter {
			continue
		}
		if s := o.board.StatusOf(rank); s != nil && o.sees(rank, s) && procfs.Ended(int(s.Process)) {
			return true
		}
	}
	return false
}

// mute reports whether a rank, of any host, gave no sign of life for half the heartbeat time-out when this
// one looked last, which is when the group failed, if it has; or is seen to be stopped. Once this rank has
// left, it reports what was so then.
func (o *observer) mute(rank int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return rank < len(o.mutes) && o.mutes[rank]
	}
	return o.isMute(rank)
}

// isMute is mute. The caller holds mu and has seen that there is a board.
func (o *observer) isMute(rank int) bool {
	if o.lives[rank].beat == watch.Gone {
		return false
	}
	return o.heartbeat > 0 && o.ticked.Sub(o.lives[rank].moved) >= o.heartbeat/2 || o.stopped(rank)
}

// suspects reports whether a rank, of any host, has given no sign of life for so long that it may soon
// count as silent, here or on a rank that hears it itself.
func (o *observer) suspects() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil || o.heartbeat < 0 {
		return false
	}
	now, quiet := o.now(), max(o.heartbeat/quietShare, 3*o.compare)
	for rank, owner := range o.owners {
		if rank == o.rank || now.Sub(o.lives[rank].moved) < quiet || o.hasLeft(rank) {
			continue
		}
		if owner == o.owners[o.rank] || o.relayed(rank) {
			return true
		}
	}
	return false
}

// hasLeft reports whether a rank has left. The caller holds mu.
func (o *observer) hasLeft(rank int) bool {
	return o.lives[rank].beat == watch.Gone || o.left(rank)
}

// relayed reports whether what a rank of another host does comes here: by way of leaders, which have not left.
// The caller holds mu.
func (o *observer) relayed(rank int) bool {
	owner := o.owners[rank]
	return owner != o.owners[o.rank] && !o.hasLeft(owner) && !o.hasLeft(o.owners[0])
}

// ranks returns what is known of all ranks. The caller holds mu.
func (o *observer) ranks(now time.Time) []watch.Rank {
	ranks := make([]watch.Rank, len(o.lives))
	for i := range ranks {
		r := &ranks[i]
		r.Left = o.lives[i].beat == watch.Gone
		r.Silent = o.silence(i, now)
		if o.relayed(i) {
			r.Quiet = now.Sub(o.lives[i].moved)
		}
		r.Status = o.board.StatusOf(i)
		switch s := r.Status; {
		case s == nil:
		case s.Namespace == o.namespace && o.namespace != 0 && s.Host == o.host && int(s.Process) == os.Getpid():
			r.Silent, r.Quiet = 0, 0 // this very process, which is not silent
		case o.sees(i, s):
			r.Look(now.Sub(o.lives[i].moved))
		}
	}
	return ranks
}

// judgeWait returns the verdict of waits of kernels that have passed their deadline, one of which is
// this rank's, for a channel and a peer as handles have them.
func (o *observer) judgeWait(channel, peer int) (v watch.Verdict, awaited int) {
	v, _ = o.judge(func(s *watch.Status, _ time.Time) {
		w := o.waitOf(channel, peer)
		w.Ended, w.For, awaited = true, o.timeout, w.Peer
		if !slices.ContainsFunc(s.Waits, func(w watch.Wait) bool { return w.Ended && w.Where == watch.Here }) {
			s.Waits = append(s.Waits, w)
		}
	})
	return v, awaited
}
