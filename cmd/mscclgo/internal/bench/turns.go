package bench

import (
	"context"
	"math/rand/v2"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// process identifies this process.
var process = rand.Uint64()

// seat is where a rank runs.
type seat struct {
	device  [16]byte // its UUID
	process uint64
}

// turns reports whether ranks of different processes share a GPU, which then runs the
// kernels of one process at a time, although they wait for kernels of another. Collective.
func turns(ctx context.Context, comm *communicator.Communicator) (bool, error) {
	mine := seat{comm.Device().Info().UUID, process}
	w := wire.NewWriter(24)
	w.Raw(mine.device[:])
	w.U64(mine.process)
	all, err := comm.AllGather(ctx, w.Bytes())
	if err != nil {
		return false, err
	}
	seats := make([]seat, len(all))
	for i, b := range all {
		r := wire.NewReader(b)
		copy(seats[i].device[:], r.Raw(len(seats[i].device)))
		seats[i].process = r.U64()
		if err := r.End(); err != nil {
			return false, err
		}
	}
	return takeTurns(seats), nil
}

func takeTurns(seats []seat) bool {
	holder := map[[16]byte]uint64{}
	for _, s := range seats {
		if other, taken := holder[s.device]; taken && other != s.process {
			return true
		}
		holder[s.device] = s.process
	}
	return false
}
