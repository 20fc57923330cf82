package gpu

import (
	"errors"
	"os"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/race"
)

// Race is a pair of accesses to memory of which one writes and that nothing orders.
type Race struct {
	First, Second RaceAccess // in the order of the run
	Memory        string     // whose it is, and where it was allocated
	Offset        uint64     // bytes into the memory
	Size          int        // bytes of the second access, at most 64

	text string
}

// String describes both accesses in a few lines, and says what would order them.
func (r Race) String() string { return r.text }

// RaceAccess is one of the two accesses of a [Race].
type RaceAccess struct {
	Kernel string    // or what a stream, a proxy or the host did
	Where  string    // the rank, or the device
	Block  [3]uint32 // of a kernel, and the thread in it
	Thread [3]uint32
	Place  string // file and line, and in parentheses the library's header and its line, if it is there
	Write  bool
	Atomic bool
	Sync   string // the thread's last synchronisation before, and its place; "" for none in this launch
}

func accessOf(a race.Access) RaceAccess {
	return RaceAccess{a.Kernel, a.Where, a.Block, a.Thread, a.Place, a.Write, a.Atomic, a.Sync}
}

// RaceFinder finds accesses to memory of emulated devices that nothing orders; see
// docs/RACES.md. It is for tests; the command "mscclgo race" runs a whole program with one.
type RaceFinder struct{ arena *os.File }

// FindRaces starts a race finder for the emulated devices that this process opens from now
// on, and for the kernels that package devicecode compiles for them, until Close. Kernels are
// several times as slow meanwhile. There is one at a time, and no emulated device may be
// open at its beginning or end.
//
// Errors: ErrInvalid if there is a finder already, ErrSystem if there is no memory or address
// space for it.
func FindRaces() (*RaceFinder, error) {
	const op = "gpu: find races"
	if race.Enabled() {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is a race finder in this process already")
	}
	arena, err := race.NewArena()
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	}
	if err := race.Begin(arena, race.Memory()); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", errors.Join(err, arena.Close()))
	}
	return &RaceFinder{arena}, nil
}

// Races returns what was found until now, one race for each pair of lines, in the order of
// discovery, and sentences that say what could not be watched.
//
// Errors: ErrInvalid after Close.
func (f *RaceFinder) Races() (races []Race, unwatched []string, err error) {
	const op = "gpu: read races"
	if f.arena == nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the finder is closed")
	}
	found, err := race.Read(f.arena)
	if err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	}
	for _, r := range found.Races {
		races = append(races, Race{accessOf(r.First), accessOf(r.Second), r.Memory, r.Offset, r.Size, r.String()})
	}
	return races, found.Lost, nil
}

// Close ends the finder and forgets what it found. It is safe to call again, and does nothing
// on nil.
func (f *RaceFinder) Close() error {
	if f == nil || f.arena == nil {
		return nil
	}
	race.End()
	err := f.arena.Close()
	f.arena = nil
	return err
}
