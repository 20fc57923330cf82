package communicator

import (
	"errors"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// failed is the bootstrap of a rank whose group has failed.
type failed struct {
	many
	err error
}

func (f failed) Err() error { return f.err }

// TestFailChild has a rank's part in making a child fail, while the parent works, or has failed because of
// another rank: that is who is to blame in the child.
func TestFailChild(t *testing.T) {
	tests := map[string]struct {
		parent error
		ranks  []int // of the parent, by their numbers in the child
		want   int   // the child's culprit
	}{
		"the parent works":            {nil, []int{3, 0, 1}, 1},
		"a rank of the child":         {mscclgo.Errorf(mscclgo.ErrRemote, "x", "rank 3 is stopped").At(0, 3), []int{3, 0, 1}, 0},
		"a rank that is not of it":    {mscclgo.Errorf(mscclgo.ErrRemote, "x", "rank 2 is stopped").At(0, 2), []int{3, 0, 1}, 1},
		"this rank, as others see it": {mscclgo.Errorf(mscclgo.ErrAborted, "x", "rank 2 considers this rank failed").At(0, mscclgo.NoRank), []int{3, 0, 1}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", nil))(t)
			defer rendezvous.Close()
			boots := make([]*bootstrap.Bootstrap, len(test.ranks))
			var all sync.WaitGroup
			for i := range boots {
				all.Go(func() {
					var err error
					if boots[i], err = bootstrap.Connect(t.Context(), bootstrap.Options{Rank: i, Size: len(boots), ID: rendezvous.ID()}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
			c := &Communicator{boot: failed{many{rank: 0, size: 4}, test.parent}}
			c.failChild(boots[1], test.ranks, errors.New("the cause"))
			for i, b := range boots {
				<-b.Done()
				peer := test.want
				if i == test.want {
					peer = mscclgo.NoRank
				}
				if e := (*mscclgo.Error)(nil); !errors.As(b.Err(), &e) || e.Peer != peer {
					t.Errorf("rank %d's error does not name rank %d: %v", i, peer, b.Err())
				}
				all.Go(func() { b.Close() })
			}
			all.Wait()
		})
	}
}
