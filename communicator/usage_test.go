package communicator_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// usage is what a group's communicators hold.
type usage struct {
	arena      []uint64 // bytes in use, by rank
	free       []uint64 // bytes of the ranks' devices
	files      int
	goroutines int
}

func take(t testing.TB, comms []*communicator.Communicator) usage {
	t.Helper()
	var u usage
	for _, c := range comms {
		free, _, err := c.Device().MemoryInfo()
		testerr.Check(t, err)
		u.free = append(u.free, free)
		u.arena = append(u.arena, communicator.ArenaBytes(c))
	}
	u.look(t)
	return u
}

// look counts the process's descriptors and goroutines.
func (u *usage) look(t testing.TB) {
	t.Helper()
	files := testerr.Must(os.ReadDir("/proc/self/fd"))(t)
	u.files, u.goroutines = len(files), runtime.NumGoroutine()
}

// What may come and go: a slab of each arena, for each rank, since ranks may share
// a device; a few descriptors, and goroutines that are about to end.
const (
	slackBytes      = 4 << 20
	slackFiles      = 6
	slackGoroutines = 4
)

// grown fails the test if u is more than before, once what is about to end has had time to.
func (u usage) grown(t testing.TB, before usage) {
	t.Helper()
	for rank := range u.arena {
		if u.arena[rank] != before.arena[rank] {
			t.Errorf("rank %d: %d bytes of the arenas are in use, before %d", rank, u.arena[rank], before.arena[rank])
		}
		if u.free[rank]+slackBytes*uint64(len(u.free)) < before.free[rank] {
			t.Errorf("rank %d: %d bytes of the device are free, before %d", rank, u.free[rank], before.free[rank])
		}
	}
	for end := time.Now().Add(20 * time.Second); u.files > before.files+slackFiles || u.goroutines > before.goroutines+slackGoroutines; u.look(t) {
		if time.Now().After(end) {
			t.Fatalf("%d files are open, before %d, and %d goroutines run, before %d", u.files, before.files, u.goroutines, before.goroutines)
		}
		time.Sleep(time.Millisecond)
	}
}
