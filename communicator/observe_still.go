package communicator

import (
	"encoding/binary"
	"hash/fnv"
	"os"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// envDeadlocks sets Options.FindDeadlocks.
const envDeadlocks = "MSCCLGO_DEADLOCKS"

// deadlocksFromEnv sets what MSCCLGO_DEADLOCKS says.
func deadlocksFromEnv(o *Options) error {
	switch text := os.Getenv(envDeadlocks); text {
	case "":
	case "0", "1":
		o.FindDeadlocks = text == "1"
	default:
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: join", "%s is %q, neither 0 nor 1", envDeadlocks, text)
	}
	return nil
}

// ownStill is what this rank tells of moments at which nothing of it can go on.
type ownStill struct {
	group  uint64 // the address of the group's status, which its kernels' waits have
	device uint64 // the device's moment that the last one was made of
	last   watch.Still
	before []watch.Rank // what all ranks reported at some time, to be compared
}

// readStill finds out whether this is such a moment: the proxies have nothing to do, the
// kernels and streams wait, for this group only, and so does the host. What it finds is
// about the time since it did so last. The caller holds mu.
func (o *observer) readStill() {
	if !o.deadlocks || o.dev == nil || len(o.hostRanks) != o.size {
		return // a message may be under way where memory is not mapped
	}
	epoch := fnv.New64a()
	add := func(n uint64) { epoch.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	idle, rounds := true, make([]uint64, len(o.services))
	for i, s := range o.services {
		proxy := s.proxy.Value()
		if proxy == nil {
			return
		}
		n, taken, done := proxy.Internal().Still()
		idle = s.still(n, taken, done) && idle
		rounds[i] = n
		add(uint64(i))
		add(taken)
	}
	device := o.dev.Internal().Still()
	exchanging := !o.exchanging.since.IsZero() && o.exchanging.ended.IsZero()
	if device.Rounds == o.still.device || !idle || device.Hosts == 0 && !exchanging {
		return
	}
	add(device.Epoch)
	add(o.exchanging.number)
	still := watch.Still{Rounds: o.still.last.Rounds + 1, Exchanging: device.Hosts == 0, Unbegun: device.Unbegun}
	for _, t := range device.Threads {
		if t.At == inside.StillWaits && t.Group != o.still.group {
			return // whoever ends that wait is not of this group
		}
		threads := watch.Threads{Kernel: t.Kernel, Block: t.Block, First: t.First, Blocks: 1, Count: t.Count, At: watch.At(t.At)}
		if t.At == inside.StillWaits {
			threads.Wait = o.waitOf(int(t.Channel), int(t.Peer))
			if threads.Wait.Kind == watch.Signal {
				threads.Wait.Number = t.Number
			}
		}
		still.Add(threads)
	}
	still.Epoch = epoch.Sum64()
	o.still.device, o.still.last = device.Rounds, still
	for i, s := range o.services {
		s.rounds = rounds[i]
	}
}

// still reports whether a proxy has nothing to do, and had not since the last moment, by what
// Still of inside.Service returned.
func (s *service) still(rounds, taken uint64, done bool) bool {
	if taken != s.taken {
		s.taken, s.rounds = taken, rounds
		return false // the newest trigger may be half done
	}
	// The first round may have begun before the last moment, or before that trigger.
	return done && (rounds == inside.ProxyEnded || rounds >= s.rounds+2)
}

// deadlock returns the verdict of a group of which nothing can go on, as rank 0 finds it. All
// ranks tell that on one board, since all map each other's memory.
func (o *observer) deadlock() (watch.Verdict, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil || o.rank != 0 || o.still.last.Rounds == 0 || slices.ContainsFunc(o.owners, func(owner int) bool { return owner != 0 }) {
		return watch.Verdict{}, false
	}
	ranks := o.ranks(o.now())
	if o.still.before != nil {
		still, forever := watch.StillSince(o.still.before, ranks)
		if forever {
			return watch.Deadlock(ranks), true
		}
		if still {
			return watch.Verdict{}, false
		}
	}
	o.still.before = ranks
	return watch.Verdict{}, false
}
