package communicator

import (
	"testing"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// TestServiceStill has a proxy told to have nothing to do only once it has found nothing
// since its newest trigger was seen, which may have been half done then.
func TestServiceStill(t *testing.T) {
	var s service
	for i, look := range []struct {
		rounds, taken uint64
		done, want    bool
	}{
		{1, 0, true, false},
		{2, 0, true, true},
		{9, 1, true, false}, // taken after these rounds, perhaps
		{9, 1, true, false},
		{10, 1, true, false}, // a round that may have begun before
		{11, 1, false, false},
		{11, 1, true, true},
		{20, 3, true, false},
		{inside.ProxyEnded, 3, true, true},
		{inside.ProxyEnded, 3, false, false},
	} {
		if got := s.still(look.rounds, look.taken, look.done); got != look.want {
			t.Errorf("look %d, %+v: %t", i, look, got)
		}
	}
}
