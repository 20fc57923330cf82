package communicator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/wire"
	"golang.org/x/sys/unix"
)

// sharedBoard is a board in a mapped memory file.
type sharedBoard struct {
	*board
	mapping []byte   // nil for a board of this rank alone
	file    *os.File // on the rank that made it; see readBoard
	server  *fdpass.Server
}

// aloneBoard returns a board of one rank, in its own memory.
func aloneBoard(ranks, group int) *sharedBoard {
	words := make([]uint64, boardBytes(ranks, group)/8)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)
	return &sharedBoard{board: boardIn(mem, ranks, group)}
}

// boardSeals fix the size of the file: access to a mapping beyond the end of its
// file is a SIGBUS.
const boardSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// createBoard makes the board of a job in a memory file, and serves the file to the other
// members of the group that run on this host as this user.
func (c *Communicator) createBoard(ranks int, job uint64) (*sharedBoard, error) {
	const op = "communicator: share a board of calls"
	file, err := boardFile(ranks, c.Size())
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot make shared memory: %w", err)
	}
	s := &sharedBoard{file: file}
	if err := s.attach(s.file, ranks, c.Size()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	*s.head = boardHead{version: boardVersion, ranks: uint64(ranks), group: uint64(c.Size()), job: job, started: uint64(time.Now().UnixMilli())}
	if ranks == 1 {
		return s, nil
	}
	s.server, err = fdpass.Listen(c.boardKey(), c.options.Timeout, c.options.Logger.With("rank", c.Rank()), s.serve)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.server.WhenShort(c.options.Timeout/shortShare, c.short)
	return s, nil
}

// serve answers a rank that asks for the board.
func (s *sharedBoard) serve([]byte, bool) fdpass.Answer {
	fd, err := unix.FcntlInt(s.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fdpass.Answer{} // the caller refuses it
	}
	return fdpass.Answer{File: os.NewFile(uintptr(fd), "board")}
}

// fetchBoard returns the board of another rank.
func (c *Communicator) fetchBoard(ctx context.Context, socket string, ranks int) (*sharedBoard, error) {
	s := &sharedBoard{}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	err := fdpass.Call(ctx, c.boardKey(), socket, nil, func(a fdpass.Answer) error { return s.attach(a.File, ranks, c.Size()) })
	if err == nil && (s.head.version != boardVersion || s.head.ranks != uint64(ranks) || s.head.group != uint64(c.Size())) {
		err = errors.Join(mscclgo.Errorf(mscclgo.ErrRemote, "communicator: map a board of calls", "it has another layout or another number of ranks"), s.close())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attach maps a board's file.
func (s *sharedBoard) attach(file *os.File, ranks, group int) error {
	const op = "communicator: map a board of calls"
	if file == nil {
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the answer has no descriptor")
	}
	fd := int(file.Fd())
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "%w", err)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || stat.Size != int64(boardBytes(ranks, group)) {
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the descriptor is not memory of %d bytes, sealed at its size", boardBytes(ranks, group))
	}
	if s.mapping, err = unix.Mmap(fd, 0, int(stat.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot map it: %w", err)
	}
	s.board = boardIn(s.mapping, ranks, group)
	return nil
}

// unserve ends the server. Ranks that have the board keep it.
func (s *sharedBoard) unserve() error {
	if s.server == nil {
		return nil
	}
	server := s.server
	s.server = nil
	return server.Close()
}

// close unmaps the memory. The board must not be used any longer.
func (s *sharedBoard) close() error {
	errs := []error{s.unserve()}
	if s.file != nil {
		errs = append(errs, s.file.Close())
		s.file = nil
	}
	if s.mapping != nil {
		errs = append(errs, unix.Munmap(s.mapping))
	}
	s.mapping, s.board = nil, nil
	return errors.Join(errs...)
}

// boardKey returns the key by which processes prove that they are of this group.
func (c *Communicator) boardKey() fdpass.Key {
	return fdpass.Key{Group: c.boot.Group(), Secret: c.boot.Key("board of calls")}
}

// shareBoard gives the ranks of each host a common board, and starts to compare the
// hosts' calls. A rank that cannot map its host's board is compared as if it were a
// host of its own. Collective.
func (c *Communicator) shareBoard(ctx context.Context, k *call, identities []identity) error {
	var members []int
	for rank, other := range identities {
		if other.host == identities[c.Rank()].host {
			members = append(members, rank)
		}
	}
	m := &matcher{c: c, members: members, index: slices.Index(members, c.Rank())}
	shared := len(members) > 1 && len(members) <= maxBoard
	var socket string
	var err error
	if len(members) <= maxBoard && m.index == 0 {
		if m.board, err = c.createBoard(len(members), identities[0].token); err == nil && shared {
			socket = m.board.server.Name()
		}
	}
	c.matcher = m // from now on release closes it
	sockets, collectErr := k.collect(ctx, []byte(socket), nil)
	if collectErr != nil {
		return collectErr
	}
	owner := members[0]
	if shared && m.index > 0 {
		m.board, err = c.fetchBoard(ctx, string(sockets[owner]), len(members))
	}
	if m.board == nil {
		m.board, owner = aloneBoard(len(members), c.Size()), c.Rank()
	}
	if err != nil {
		c.options.Logger.Info("calls are not compared in shared memory", "rank", c.Rank(), "error", err)
	}
	owners, err := k.owners(ctx, owner)
	if err != nil {
		return err
	}
	m.start(owners, 1<<63|identities[0].token)
	return m.board.unserve()
}

// owners returns, for each rank, the leader of its host: the rank that made its board.
// owner is this rank's.
func (k *call) owners(ctx context.Context, owner int) ([]int, error) {
	w := wire.NewWriter(4)
	w.U32(uint32(owner))
	all, err := k.collect(ctx, w.Bytes(), nil)
	if err != nil {
		return nil, err
	}
	owners := make([]int, len(all))
	for rank, b := range all {
		r := wire.NewReader(b)
		owners[rank] = int(r.U32())
		// A leader is its host's first rank, and has a board of its own.
		if r.Err() == nil && (owners[rank] > rank || owners[owners[rank]] != owners[rank]) {
			r.Fail(fmt.Errorf("its board is of rank %d", owners[rank]))
		}
		if err := r.End(); err != nil {
			return nil, k.errorf(mscclgo.ErrRemote, rank, "its message is malformed: %w", err)
		}
	}
	return owners, nil
}
