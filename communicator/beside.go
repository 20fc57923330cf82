package communicator

import (
	"os"
	"slices"
	"time"

	"github.com/mscclgo/mscclgo/internal/procfs"
)

// CUDA's driver waits for all kernels of a process on a GPU while it loads code or makes a graph. Where ranks
// of one process share a GPU, these may be kernels that wait for the rank that does so. So package collective has
// such ranks do it together, when all of them have made the calls before, and go on when all have done it.

// process tells the processes of a host apart.
type process struct{ namespace, id uint64 } // of process ids, 0 if unknown

func thisProcess() process { return process{procfs.Namespace(), uint64(os.Getpid())} }

// besidePatience is how long Together waits: a program may make the calls of all its ranks by one goroutine.
const besidePatience = time.Second

// findBeside finds the other ranks of this process that use this rank's device, and whether any ranks of the group
// share a device in one process.
func (c *Communicator) findBeside(identities []identity) {
	type place struct {
		device [16]byte
		process
	}
	of := func(i identity) place { return place{i.device, i.process} }
	count, me := map[place]int{}, identities[c.Rank()]
	for rank, i := range identities {
		if i.process.namespace == 0 {
			continue
		}
		count[of(i)]++
		c.crowded = c.crowded || count[of(i)] > 1
		if rank != c.Rank() && of(i) == of(me) && i.host == me.host { // which have a board together
			c.beside = append(c.beside, rank)
		}
	}
}

func (c communicatorInside) Together(done, wait bool) {
	step := 2 * c.lastCall().Number
	if done {
		step++
	}
	behind := c.failure.observer.behind
	for start := time.Now(); behind(step, c.beside) && wait && !c.failure.failed.Load() && time.Since(start) < besidePatience; {
		time.Sleep(50 * time.Microsecond)
	}
}

// behind notes that this rank has come to a step, and reports whether one of some ranks of its host is not there.
func (o *observer) behind(step uint64, ranks []int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.board == nil {
		return false
	}
	o.board.ComeTo(o.rank, step)
	return slices.ContainsFunc(ranks, func(rank int) bool { return o.board.Behind(rank, step) })
}
