package communicator

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestLaunchEndsAtDeadline has a launch end, by the deadline of a wait in it, just when the rank
// looks: others must still hear that it was under way.
func TestLaunchEndsAtDeadline(t *testing.T) {
	dev := testdev.Open(t, 0)
	s := testerr.Must(dev.NewStream())(t)
	defer s.Close()
	all, _ := observers(0)
	o := all[0]
	o.dev, o.launches = dev, dev.Internal().GroupLaunches()
	defer o.launches.End()
	testerr.Check(t, s.BeginCapture())
	graph := testerr.Must(s.EndCapture())(t)
	defer graph.Close()
	for round := range 3 {
		testerr.Check(t, errors.Join(graph.Launch(s), graph.Launch(s)))
		failed := round > 0 // and goes on to be
		o.tick(func() *deviceNotes {
			testerr.Report(t, s.Synchronize(t.Context()))
			return &deviceNotes{failed: failed}
		})
		if told := o.launched; len(told) != 2 || told[0].Ended || told[1].Ended || told[1].Nth != 2 {
			t.Errorf("round %d: it tells of %v", round, told)
		}
	}
}
