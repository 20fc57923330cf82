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

const boardOp = "communicator: share a board of calls"

// serveBoard serves the file of this rank's board to the other members of the group that run on this host as this user.
func (c *Communicator) serveBoard() (*fdpass.Server, error) {
	server, err := fdpass.Listen(c.boardKey(), c.options.Timeout, c.options.Logger.With("rank", c.Rank()), func([]byte, bool) fdpass.Answer {
		fd, err := unix.FcntlInt(c.board.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fdpass.Answer{} // the caller refuses it
		}
		return fdpass.Answer{File: os.NewFile(uintptr(fd), "board")}
	})
	if err == nil {
		server.WhenShort(c.options.Timeout/shortShare, c.short)
	}
	return server, err
}

// fetchBoard returns the board of another rank.
func (c *Communicator) fetchBoard(ctx context.Context, socket string, ranks int) (board *watch.SharedBoard, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	err = fdpass.Call(ctx, c.boardKey(), socket, nil, func(a fdpass.Answer) (err error) {
		board, err = watch.OpenBoard(a.File, ranks, c.Size())
		return err
	})
	if err != nil {
		return nil, err
	}
	return board, nil
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
	return c.board.Close()
}

// boardKey returns the key by which processes prove that they are of this group.
func (c *Communicator) boardKey() fdpass.Key {
	return fdpass.Key{Group: c.boot.Group(), Secret: c.boot.Key("board of calls")}
}

// shareBoard gives the ranks of each host a common board, and starts to compare the
// hosts' calls. A rank that cannot map its host's board is compared as if it were a
// host of its own. Collective.
func (c *Communicator) shareBoard(ctx context.Context, k *call, identities []identity) (err error) {
	var members []int
	for rank, other := range identities {
		if other.host == identities[c.Rank()].host {
			members = append(members, rank)
		}
	}
	owner, shared := members[0], len(members) > 1 && len(members) <= watch.MaxBoard
	var socket string
	var failed error // which the other ranks need not know
	if len(members) <= watch.MaxBoard && owner == c.Rank() {
		if c.board, failed = watch.CreateBoard(len(members), c.Size(), identities[0].token); failed != nil {
			failed = mscclgo.Errorf(mscclgo.ErrSystem, boardOp, "cannot make shared memory: %w", failed)
		}
	}
	if c.board != nil && shared {
		var server *fdpass.Server
		if server, failed = c.serveBoard(); failed == nil {
			socket = server.Name()
			defer func() { err = errors.Join(err, server.Close()) }() // ranks that have the board keep it
		}
	}
	sockets, err := k.collect(ctx, []byte(socket), nil)
	if err != nil {
		return err
	}
	if shared && owner != c.Rank() {
		c.board, failed = c.fetchBoard(ctx, string(sockets[owner]), len(members))
	}
	if c.board == nil {
		c.board, owner = watch.AloneBoard(len(members), c.Size()), c.Rank()
	}
	if failed != nil {
		c.options.Logger.Info("calls are not compared in shared memory", "rank", c.Rank(), "error", failed)
	}
	owners, err := k.owners(ctx, owner)
	if err != nil {
		return err
	}
	c.calls.Store(watch.NewCalls(c.Rank(), members, c.board.Board))
	c.failure.observer.start(c.board.Board, owners, c.hostRanks(), 1<<63|identities[0].token)
	return nil
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
