package communicator

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/fdpass"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// sharedBoard is a board that this rank may serve to others.
type sharedBoard struct {
	*watch.SharedBoard
	server *fdpass.Server
}

// createBoard makes the board of a job in a memory file, and serves the file to the other
// members of the group that run on this host as this user.
func (c *Communicator) createBoard(ranks int, job uint64) (*sharedBoard, error) {
	const op = "communicator: share a board of calls"
	board, err := watch.CreateBoard(ranks, c.Size(), job)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot make shared memory: %w", err)
	}
	s := &sharedBoard{SharedBoard: board}
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
	fd, err := unix.FcntlInt(s.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
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
	err := fdpass.Call(ctx, c.boardKey(), socket, nil, func(a fdpass.Answer) (err error) {
		s.SharedBoard, err = watch.OpenBoard(a.File, ranks, c.Size())
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
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

// leaveBoard ends what this rank tells others, and closes the board. It is called after Refuse of calls, if there are any.
func (c *Communicator) leaveBoard() error {
	if c.failure != nil {
		c.failure.observer.leave()
	}
	if c.board == nil {
		return nil
	}
	c.calls.Load().Close()
	return c.board.close()
}

// close unmaps the memory. The board must not be used any longer.
func (s *sharedBoard) close() error { return errors.Join(s.unserve(), s.Close()) }

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
	shared := len(members) > 1 && len(members) <= watch.MaxBoard
	var socket string
	var err error
	if len(members) <= watch.MaxBoard && members[0] == c.Rank() {
		if c.board, err = c.createBoard(len(members), identities[0].token); err == nil && shared {
			socket = c.board.server.Name()
		}
	}
	sockets, collectErr := k.collect(ctx, []byte(socket), nil)
	if collectErr != nil {
		return collectErr
	}
	owner := members[0]
	if shared && owner != c.Rank() {
		c.board, err = c.fetchBoard(ctx, string(sockets[owner]), len(members))
	}
	if c.board == nil {
		c.board, owner = &sharedBoard{SharedBoard: watch.AloneBoard(len(members), c.Size())}, c.Rank()
	}
	if err != nil {
		c.options.Logger.Info("calls are not compared in shared memory", "rank", c.Rank(), "error", err)
	}
	owners, err := k.owners(ctx, owner)
	if err != nil {
		return err
	}
	c.calls.Store(watch.NewCalls(c.Rank(), members, c.board.Board))
	c.failure.observer.start(c.board.Board, owners, 1<<63|identities[0].token)
	return c.board.unserve()
}

// leader is the rank that made a rank's board.
type leader struct{ rank int }

var leaderWire = wire.For[leader]()

// owners returns, for each rank, the leader of its host: the rank that made its board.
// owner is this rank's.
func (k *call) owners(ctx context.Context, owner int) ([]int, error) {
	all, err := collectAll(ctx, k, leaderWire, &leader{owner}, nil)
	if err != nil {
		return nil, err
	}
	owners := make([]int, len(all))
	for rank, its := range all {
		owners[rank] = its.rank
		// A leader is its host's first rank, and has a board of its own.
		if its.rank > rank || owners[its.rank] != its.rank {
			return nil, k.errorf(mscclgo.ErrRemote, rank, "its message is malformed: its board is of rank %d", its.rank)
		}
	}
	return owners, nil
}
