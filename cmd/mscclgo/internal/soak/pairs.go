package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
)

// The faults of this file concern two ranks, or the link between them.
const (
	pairSilent = "pair silent" // the host of two ranks
	twoFaults  = "two faults"  // one rank is stopped, and then the victim is killed
	mtusDiffer = "MTUs differ" // the link of the victim's host loses large packets
)

const (
	narrowMTU = 600
	// pairCloses bounds the closing in such runs: nothing waits for a rank that is known to be dead.
	pairCloses = 4 * time.Second
)

// pair chooses the other rank of the victim's fault.
func (r *run) pair() {
	r.ranks = max(r.ranks, 3)
	for len(r.transports) < r.ranks {
		r.transports = append(r.transports, r.transports[0])
	}
	if r.mate = (r.Victim + 1) % r.ranks; r.mate == 0 && r.fault.name == pairSilent {
		r.mate, r.Victim = r.Victim, 0 // whose host all others come to
	}
}

// isMate reports whether a rank has the fault too.
func (r *run) isMate(rank int) bool { return r.fault.pairs && rank == r.mate }

// options are the network's.
func (r *run) options() netlab.Options { return netlab.Options{Whole: r.fault.name == mtusDiffer} }

// stopMate stops the other rank, and returns a while later, before its silence counts.
func (r *run) stopMate(mate *process, random *rand.Rand) {
	mate.cmd.Process.Signal(syscall.SIGSTOP) // fails if it has ended
	time.Sleep(time.Duration(random.Float64() * float64(r.Heartbeat) / 2))
}

// accepts reports whether an error that names another rank than the victim is right all the same.
func (r *run) accepts(end *report) bool {
	switch r.fault.name {
	case pairSilent:
		return r.isMate(end.Peer)
	case twoFaults: // while the group forms, only connections tell of a death
		return r.isMate(end.Peer) && (end.Steps == 0 || strings.Contains(end.Text, fmt.Sprintf("rank %d ", r.Victim)))
	}
	return false
}
