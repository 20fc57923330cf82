package communicator

import (
	"context"
	"errors"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// maxContribution bounds what one rank tells the others in a collective call.
const maxContribution = 16 << 20

// collect gathers what each rank contributes to a collective call. A rank whose
// own part failed contributes the error instead; then the call fails on all
// ranks, naming it, and no rank waits for one that gave up. Collective.
func (c *Communicator) collect(ctx context.Context, op string, mine []byte, failed error) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	w := wire.NewWriter(len(mine) + 8)
	w.Bool(failed == nil)
	if failed == nil {
		w.Blob(mine)
	} else {
		w.String(failed.Error())
	}
	all, err := c.boot.AllGather(ctx, w.Bytes())
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	if failed != nil {
		return nil, failed
	}
	contributions := make([][]byte, len(all))
	for rank, b := range all {
		r := wire.NewReader(b)
		ok := r.Bool()
		content := r.Blob(maxContribution)
		if err := r.End(); err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "its message is malformed: %w", err).At(c.Rank(), rank)
		}
		if !ok {
			return nil, mscclgo.Errorf(mscclgo.ErrRemote, op, "%s", content).At(c.Rank(), rank)
		}
		contributions[rank] = content
	}
	return contributions, nil
}

// agree ends a collective call: it fails on all ranks when failed is set on
// one. Collective.
func (c *Communicator) agree(ctx context.Context, op string, failed error) error {
	_, err := c.collect(ctx, op, nil, failed)
	return err
}
