package communicator

import (
	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
)

// filesOfRank is about how many descriptors a rank of a process has open: sockets of the bootstrap,
// and memory.
const filesOfRank = 12

// enoughFiles returns an error if the limit of open files is too low for so many ranks of one
// process, before one of them fails for it. The Go runtime has raised the soft limit to the
// hard one.
func enoughFiles(ranks int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil // the call that needs a descriptor will tell
	}
	if need := uint64(ranks) * filesOfRank; ranks > fewRanks && limit.Cur < need {
		return mscclgo.Errorf(mscclgo.ErrSystem, "communicator: run ranks", "%d ranks of one process need about %d open files, and the limit is %d; raise it (ulimit -n)", ranks, need, limit.Cur)
	}
	return nil
}
