package communicator

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/watch"
)

func init() { native.ReadBoard = readBoard }

// A board's file stays open in the process that made it, so that the command mscclgo ps
// finds it in /proc/PID/fd, by its name. The kernel shows that to processes of the same
// user, which could read the process's memory and the group's secret as well. It needs no
// help of the ranks, which may be stopped, and is gone with the last process.

// readBoard returns the job of a board's file.
func readBoard(file *os.File) (*watch.Job, error) {
	const op = "communicator: read a board"
	var stat unix.Stat_t
	fd := int(file.Fd())
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	}
	// The size can not change while it is mapped.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&boardSeals != boardSeals || stat.Size < int64(unsafe.Sizeof(boardHead{})) || stat.Size > maxBoardBytes {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "it is no board: its size is %d, or may change", stat.Size)
	}
	mapping, err := unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot map it: %w", err)
	}
	defer unix.Munmap(mapping)
	head := *(*boardHead)(unsafe.Pointer(unsafe.SliceData(mapping)))
	if head.version != boardVersion || head.ranks > maxBoard || head.group > maxGroup || int64(boardBytes(int(head.ranks), int(head.group))) != stat.Size {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "it is of another version of mscclgo, or not ready")
	}
	return boardIn(mapping, int(head.ranks), int(head.group)).job(time.Now()), nil
}

const (
	maxBoardBytes = 1 << 30
	maxGroup      = 1 << 20
)

// job returns what the board shows.
func (b *board) job(now time.Time) *watch.Job {
	j := &watch.Job{ID: b.head.job, Started: time.UnixMilli(int64(min(b.head.started, 1<<50)))}
	namespace, host := pidNamespace(), hostName()
	for rank := range b.pulses {
		beat := b.beatOf(rank)
		r := watch.Rank{Left: beat == gone}
		heard := time.Duration(0)
		if begun := beat != 0 && beat != gone; begun {
			heard = max(now.Sub(time.UnixMilli(int64(min(beat, 1<<50)))), 0)
		}
		if s, err := watch.Decode(b.statusOf(rank)); err == nil {
			r.Status = s
			if s.Host == host && s.Namespace == namespace && namespace != 0 && !r.Left {
				r.Stopped, r.Runs, r.Silent = procfs.Stopped(int(s.Process)), procfs.Runs(int(s.Process)), heard
				r.Ended = heard >= noteFresh && procfs.Ended(int(s.Process))
			}
		}
		j.Ranks, j.Heard, j.Begun = append(j.Ranks, r), append(j.Heard, heard), append(j.Begun, beat != 0)
	}
	return j
}

// pidNamespace returns the inode of this process's pid namespace, 0 if it is unknown.
func pidNamespace() uint64 {
	var stat unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &stat) != nil {
		return 0
	}
	return stat.Ino
}

// hostName returns the machine's name as statuses have it.
func hostName() string {
	name, _ := os.Hostname()
	return watch.Printable(name[:min(len(name), watch.MaxName)])
}

// boardFile makes the memory file of a board.
func boardFile(ranks, group int) (*os.File, error) {
	fd, err := unix.MemfdCreate(native.BoardName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "board")
	if err = unix.Ftruncate(fd, int64(boardBytes(ranks, group))); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, boardSeals)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
