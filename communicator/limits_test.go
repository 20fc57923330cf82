package communicator

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestEnoughFiles has a limit that is too low for the ranks of a large group.
func TestEnoughFiles(t *testing.T) {
	var limit unix.Rlimit
	testerr.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if err := enoughFiles(fewRanks); err != nil {
		t.Errorf("few ranks: %v", err)
	}
	if limit.Cur > 1<<40 {
		t.Skip("there is no limit of open files")
	}
	testerr.Expect(t, enoughFiles(int(limit.Cur)), mscclgo.ErrSystem, "open files", "ulimit -n")
}
