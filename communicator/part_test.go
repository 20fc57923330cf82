package communicator

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// partBoot is the bootstrap of rank 0 of a group, as far as an error needs it.
type partBoot struct{ fullBootstrap }

func (partBoot) Rank() int { return 0 }

// TestPartFailed follows ranks that failed because of others. This rank is 0.
func TestPartFailed(t *testing.T) {
	fail := func(kind mscclgo.Kind, rank, peer int) error {
		return mscclgo.Errorf(kind, "connect", "it did not answer").At(rank, peer)
	}
	for name, c := range map[string]struct {
		mine  error
		parts map[int]error
		peer  int // that the error names, or -2 for no error
	}{
		"none":                    {nil, nil, -2},
		"its own fault":           {nil, map[int]error{2: fail(mscclgo.ErrSystem, 2, mscclgo.NoRank)}, 2},
		"a peer's fault":          {nil, map[int]error{2: fail(mscclgo.ErrRemote, 2, 1)}, 1},
		"wrong use is its own":    {nil, map[int]error{2: fail(mscclgo.ErrInvalid, 2, 1)}, 2},
		"a rank of another group": {nil, map[int]error{2: fail(mscclgo.ErrRemote, 2, 9)}, 2},
		"a chain":                 {nil, map[int]error{3: fail(mscclgo.ErrTimeout, 3, 2), 2: fail(mscclgo.ErrTimeout, 2, 1)}, 1},
		"this rank's fault":       {nil, map[int]error{2: fail(mscclgo.ErrRemote, 2, 0)}, mscclgo.NoRank},
		"a circle":                {nil, map[int]error{1: fail(mscclgo.ErrTimeout, 1, 2), 2: fail(mscclgo.ErrTimeout, 2, 1)}, 1},
		"mine":                    {fail(mscclgo.ErrSystem, 0, mscclgo.NoRank), map[int]error{2: fail(mscclgo.ErrRemote, 2, 1)}, mscclgo.NoRank},
		"mine, who awaited too":   {fail(mscclgo.ErrTimeout, 0, 1), map[int]error{1: fail(mscclgo.ErrTimeout, 1, 2)}, 2},
		"mine, who refused":       {fail(mscclgo.ErrRemote, 0, 1), map[int]error{1: fail(mscclgo.ErrTimeout, 1, 2)}, 1},
		"mine, who awaited me":    {fail(mscclgo.ErrTimeout, 0, 1), map[int]error{1: fail(mscclgo.ErrTimeout, 1, 0)}, 1},
		"mine, who did not fail":  {fail(mscclgo.ErrTimeout, 0, 1), map[int]error{2: fail(mscclgo.ErrTimeout, 2, 1)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			k := &call{c: &Communicator{boot: partBoot{}}, op: "make channels"}
			parts := make([]*watch.Fact, 4)
			for rank, err := range c.parts {
				f := watch.FactOf(err, rank, len(parts))
				parts[rank] = &f
			}
			if c.mine != nil {
				f := watch.FactOf(c.mine, 0, len(parts))
				parts[0] = &f
			}
			err := k.partFailed(c.mine, parts)
			peer := -2
			if e := (*mscclgo.Error)(nil); errors.As(err, &e) {
				peer = e.Peer
			}
			if peer != c.peer {
				t.Errorf("%v names rank %d, want %d", err, peer, c.peer)
			}
		})
	}
}
