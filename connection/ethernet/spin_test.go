package ethernet

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/spin"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// Machines with few cores do not spin; here they do.
func TestSpinning(t *testing.T) {
	for _, room := range []int32{0, 1, 8} {
		a, b := newRank(t, 0, loopback()), newRank(t, 1, loopback())
		for _, r := range []*rank{a, b} {
			r.t.rank.Spin.SetRoom(room)
		}
		ab, ba := connect(t, a, b)
		src, mine := memory(t, a, onDevice, 4096), memory(t, b, onDevice, 4096)
		dst := imported(t, a, mine)
		for i := range uint64(50) {
			testerr.Check(t, errors.Join(ab.Write(dst, 8, src, 0, 1000), ab.UpdateAndSync(dst, 0, i, i+1), ab.Flush(t.Context())))
			if i%10 == 0 {
				time.Sleep(2 * spin.Time) // all sleep
			}
		}
		if err := errors.Join(ab.Close(), ba.Close()); err != nil { // while some spin
			t.Error(err)
		}
		for _, r := range []*rank{a, b} {
			if left := r.t.rank.Spin.Room(); left != room {
				t.Errorf("there was room for %d to spin, then for %d", room, left)
			}
		}
	}
}
