package communicator_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
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
		if err != nil {
			t.Fatal(err)
		}
		u.free = append(u.free, free)
		u.arena = append(u.arena, communicator.ArenaBytes(c))
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	u.files, u.goroutines = len(files), runtime.NumGoroutine()
	return u
}

// What may come and go: a slab of each arena, for each rank, since ranks may share
// a device; a few descriptors, and goroutines that are about to end.
const (
	slackBytes      = 4 << 20
	slackFiles      = 6
	slackGoroutines = 4
)

// grown fails the test if u is more than before.
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
	if u.files > before.files+slackFiles {
		t.Errorf("%d files are open, before %d", u.files, before.files)
	}
	for wait := time.Millisecond; u.goroutines > before.goroutines+slackGoroutines; wait *= 2 {
		if wait > time.Second {
			t.Fatalf("%d goroutines run, before %d", u.goroutines, before.goroutines)
		}
		time.Sleep(wait)
		u.goroutines = runtime.NumGoroutine()
	}
}
