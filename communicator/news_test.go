package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// newsroom is a group of ranks that have no more than news.
type newsroom struct {
	*office
	ranks    []*bootstrap.Bootstrap
	together []*bool // whether all close
}

func newNewsroom(t *testing.T, n int) *newsroom {
	t.Helper()
	r := &newsroom{newOffice(n), make([]*bootstrap.Bootstrap, n), make([]*bool, n)}
	each(t, n, func(i int) (err error) {
		r.together[i] = new(bool)
		r.ranks[i], err = bootstrap.Over(t.Context(), parting{clerk{r.office, i}, r.together[i]})
		return err
	})
	t.Cleanup(func() {
		each(t, n, func(i int) error { *r.together[i] = true; return r.ranks[i].Close() })
	})
	return r
}

// parting is a clerk whose group closes or not.
type parting struct {
	clerk
	together *bool
}

func (p parting) Together() bool { return *p.together }

// leave has a rank close and end.
func (r *newsroom) leave(rank int) {
	r.ranks[rank].Close()
	close(r.gone[rank])
}

// hear fails the test unless all ranks but some hear that one has failed.
func (r *newsroom) hear(t *testing.T, failed int, but []int) {
	t.Helper()
	for rank, err := range outcomes(t, r.size, func(rank int) error {
		if slices.Contains(but, rank) {
			return nil
		}
		select {
		case <-r.ranks[rank].Done():
			return r.ranks[rank].Err()
		case <-time.After(10 * time.Second):
			return errors.New("it has heard nothing")
		}
	}) {
		if rank != failed && !slices.Contains(but, rank) {
			failing(t, rank, err, mscclgo.ErrAborted, fmt.Sprintf("rank %d, peer %d", rank, failed), "the disk is full")
		}
	}
}

// TestNewsPassRanksThatLeft has ranks leave through which the news of others went, and then one fail
// that was behind them.
func TestNewsPassRanksThatLeft(t *testing.T) {
	const n = 80 // four levels
	for _, c := range []struct {
		leave  []int
		failed int
	}{
		{[]int{1}, 9}, {[]int{1}, 0}, {[]int{0}, 8}, {[]int{0, 1}, 2}, {[]int{1, 0}, 10}, {[]int{9, 1, 0}, 79}, {[]int{0, 1, 9}, 73},
		{[]int{8, 7, 6, 5, 4, 3, 2, 1, 0}, 40}, {[]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, 40},
	} {
		for _, atOnce := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v leave, at once %v", c.leave, atOnce), func(t *testing.T) {
				r := newNewsroom(t, n)
				if atOnce {
					each(t, len(c.leave), func(i int) error { r.leave(c.leave[i]); return nil })
				} else {
					for _, rank := range c.leave {
						r.leave(rank)
					}
				}
				r.ranks[c.failed].Abort(errors.New("the disk is full"))
				r.hear(t, c.failed, c.leave)
			})
		}
	}
}

// TestNewsWhileRanksLeave has a rank fail while others leave, in many groups.
func TestNewsWhileRanksLeave(t *testing.T) {
	const n = 30
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 0))
		all := random.Perm(n)
		failed, leave := all[0], all[1:2+random.IntN(n-2)]
		t.Run(fmt.Sprintf("%d fails, %v leave", failed, leave), func(t *testing.T) {
			r := newNewsroom(t, n)
			each(t, 1+len(leave), func(i int) error {
				if i == 0 {
					r.ranks[failed].Abort(errors.New("the disk is full"))
				} else {
					r.leave(leave[i-1])
				}
				return nil
			})
			r.hear(t, failed, leave)
		})
	}
}

// TestOwnBootstrapRankLeaves has the communicator of a rank close through which news of others went, and
// then one fail that was behind it.
func TestOwnBootstrapRankLeaves(t *testing.T) {
	testdev.Parallel(t) // rank 1 waits for the others to close too
	const n = 11
	o, comms := officeGroup(t, n, communicator.Options{Timeout: time.Hour})
	testerr.Check(t, comms[1].Close())
	close(o.gone[1])
	comms[n-1].Abort(errors.New("the disk is full"))
	ctx, cancel := context.WithTimeout(t.Context(), patience/4)
	defer cancel()
	for rank, err := range outcomes(t, n, func(rank int) error {
		if rank == 1 {
			return nil
		}
		select {
		case <-comms[rank].Done():
		case <-ctx.Done():
		}
		return comms[rank].Err()
	}) {
		if rank != 1 && rank != n-1 {
			failing(t, rank, err, mscclgo.ErrAborted, fmt.Sprintf("rank %d, peer %d", rank, n-1), "the disk is full")
		}
	}
}
