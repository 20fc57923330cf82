package communicator

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestLaunchEndsAtDeadline has a launch end, by the deadline of a wait in it, just when the rank
// looks: others must still hear that it was under way.
func TestLaunchEndsAtDeadline(t *testing.T) {
	dev := testdev.Open(t, 0)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all, _ := observers(0)
	o := all[0]
	o.dev, o.launches = dev, dev.Internal().GroupLaunches()
	defer o.launches.End()
	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	graph, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	defer graph.Close()
	for round := range 3 {
		if err := errors.Join(graph.Launch(s), graph.Launch(s)); err != nil {
			t.Fatal(err)
		}
		failed := round > 0 // and goes on to be
		o.tick(func() *deviceNotes {
			if err := s.Synchronize(t.Context()); err != nil {
				t.Error(err)
			}
			return &deviceNotes{failed: failed}
		})
		if told := o.launched; len(told) != 2 || told[0].Ended || told[1].Ended || told[1].Nth != 2 {
			t.Errorf("round %d: it tells of %v", round, told)
		}
	}
}
