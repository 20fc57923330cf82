package watch

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo"
)

func TestCulprit(t *testing.T) {
	waited := mscclgo.Errorf(mscclgo.ErrTimeout, "wait", "no sign").At(1, 4)
	for what, c := range map[string]struct {
		err  error
		want int
	}{
		"nothing":             {nil, 1},
		"another error":       {errors.New("no"), 1},
		"a time-out":          {waited, 4},
		"a dead peer":         {mscclgo.Errorf(mscclgo.ErrRemote, "put", "gone").At(1, 0), 0},
		"a wrapped time-out":  {fmt.Errorf("step 3: %w", errors.Join(errors.New("x"), waited)), 4},
		"one that was passed": {mscclgo.Errorf(mscclgo.ErrAborted, "abort", "%w", waited).At(1, mscclgo.NoRank), 4},
		"a time-out of none":  {mscclgo.Errorf(mscclgo.ErrTimeout, "wait", "%w", waited).At(1, mscclgo.NoRank), 4},
		"wrong use":           {mscclgo.Errorf(mscclgo.ErrInvalid, "put", "outside").At(1, 4), 1},
	} {
		if got := Culprit(c.err, 1); got != c.want {
			t.Errorf("%s: rank %d is to blame, want %d", what, got, c.want)
		}
	}
}
