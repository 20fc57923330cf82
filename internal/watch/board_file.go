package watch

import (
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/procfs"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// BoardName is the name of the memory file of a board. The file stays open in the process that made it, so that the command
// mscclgo ps finds it in /proc/PID/fd, by this name. The kernel shows that to processes of the same user, which could read
// the process's memory and the group's secret as well. It needs no help of the ranks, which may be stopped, and is gone
// with the last process.
const BoardName = "mscclgo-board"

// SharedBoard is a board in a mapped memory file.
type SharedBoard struct {
	*Board
	File    *os.File // on the rank that made it; see BoardName
	mapping []byte   // nil for a board of this rank alone
}

// AloneBoard returns a board of so many ranks of a group, in memory of this process.
func AloneBoard(ranks, group int) *SharedBoard {
	words := make([]uint64, boardBytes(ranks, group)/8)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
	return &SharedBoard{Board: boardIn(mem, ranks, group)}
}

// boardSeals fix the size of the file: access to a mapping beyond the end of its file is a SIGBUS.
const boardSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// CreateBoard makes the board of so many ranks of a group in a memory file. job is the same on all hosts.
func CreateBoard(ranks, group int, job uint64) (*SharedBoard, error) {
	fd, err := unix.MemfdCreate(BoardName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	s := &SharedBoard{File: os.NewFile(uintptr(fd), "board")}
	if err = unix.Ftruncate(fd, int64(boardBytes(ranks, group))); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, boardSeals)
	}
	if err == nil {
		err = s.attach(s.File, ranks, group)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	*s.head = boardHead{version: boardVersion, ranks: uint64(ranks), group: uint64(group), job: job, started: uint64(time.Now().UnixMilli())}
	return s, nil
}

// OpenBoard returns the board of so many ranks of a group that another process has made, in a file that stays the caller's.
func OpenBoard(file *os.File, ranks, group int) (*SharedBoard, error) {
	s := &SharedBoard{}
	if err := s.attach(file, ranks, group); err != nil {
		return nil, err
	}
	if s.head.version != boardVersion || s.head.ranks != uint64(ranks) || s.head.group != uint64(group) {
		return nil, errors.Join(mscclgo.Errorf(mscclgo.ErrRemote, boardOp, "it has another layout or another number of ranks"), s.Close())
	}
	return s, nil
}

const boardOp = "communicator: map a board of calls"

// attach maps a board's file.
func (s *SharedBoard) attach(file *os.File, ranks, group int) error {
	if file == nil {
		return mscclgo.Errorf(mscclgo.ErrRemote, boardOp, "the answer has no descriptor")
	}
	fd := int(file.Fd())
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, boardOp, "%w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || stat.Size != int64(boardBytes(ranks, group)) {
		return mscclgo.Errorf(mscclgo.ErrRemote, boardOp, "the descriptor is not memory of %d bytes, sealed at its size", boardBytes(ranks, group))
	}
	if s.mapping, err = unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, boardOp, "cannot map it: %w", err)
	}
	s.Board = boardIn(s.mapping, ranks, group)
	return nil
}

// Close unmaps the memory. The board must not be used any longer.
func (s *SharedBoard) Close() error {
	var errs []error
	if s.File != nil {
		errs = append(errs, s.File.Close())
	}
	if s.mapping != nil {
		errs = append(errs, unix.Munmap(s.mapping))
	}
	*s = SharedBoard{}
	return errors.Join(errs...)
}

// ReadBoard returns the job of a board's file.
func ReadBoard(file *os.File) (*Job, error) {
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
	if head.version != boardVersion || head.ranks > MaxBoard || head.group > maxGroup || int64(boardBytes(int(head.ranks), int(head.group))) != stat.Size {
		return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "it is of another version of mscclgo, or not ready")
	}
	return boardIn(mapping, int(head.ranks), int(head.group)).job(time.Now()), nil
}

const (
	maxBoardBytes = 1 << 30
	maxGroup      = 1 << 20
)

// deadAfter is for how long a rank has given no sign of life until its process is asked for: one that has just left may
// have ended.
const deadAfter = 300 * time.Millisecond

// job returns what the board shows.
func (b *Board) job(now time.Time) *Job {
	j := &Job{ID: b.head.job, Started: time.UnixMilli(int64(min(b.head.started, 1<<50)))}
	namespace, host := procfs.Namespace(), HostName()
	for rank := range b.pulses {
		beat := b.BeatOf(rank)
		r := Rank{Status: b.StatusOf(rank), Left: beat == Gone}
		heard := time.Duration(0)
		if begun := beat != 0 && beat != Gone; begun {
			heard = max(now.Sub(time.UnixMilli(int64(min(beat, 1<<50)))), 0)
		}
		if s := r.Status; s != nil && s.Host == host && s.Namespace == namespace && namespace != 0 && !r.Left {
			r.Look(heard)
			r.Silent = heard
		}
		j.Ranks, j.Heard, j.Begun = append(j.Ranks, r), append(j.Heard, heard), append(j.Begun, beat != 0)
	}
	return j
}

// Look asks the operating system for the process of a rank of this host, of which nothing has been heard for so long.
func (r *Rank) Look(silent time.Duration) {
	r.Stopped, r.Runs = procfs.Stopped(int(r.Process)), procfs.Runs(int(r.Process))
	r.Ended = silent >= deadAfter && procfs.Ended(int(r.Process))
}

// HostName returns the machine's name as statuses have it.
func HostName() string {
	name, _ := os.Hostname()
	return wire.Printable(clip(name, MaxName))
}
