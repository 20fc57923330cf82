package collective

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
)

// TestOtherStep has a rank make a runner while another is a step or two ahead, as one is whose context ended in a call
// of both: the errors tell in which steps they are.
func TestOtherStep(t *testing.T) {
	for ahead, here := range []string{"compare the devices", "make a runner"} {
		t.Run(here, func(t *testing.T) {
			runGroups(t, 2, tinyGroups, "other", func(m *groupMember) (err error) {
				const there = "share a buffer"
				want := there
				if m.comm.Rank() == 0 {
					_, err = New(m.ctx, m.comm, Options{})
				} else {
					if _, err := m.comm.Internal().RunnersGroup(m.ctx); err != nil { // New's first step
						return err
					}
					if ahead > 0 {
						if _, err := m.runner.exchange(m.ctx, "compare the devices", "", nil); err != nil {
							return err
						}
					}
					want = here
					_, err = m.runner.exchange(m.ctx, there, "", nil)
				}
				if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprintf("it is in %q; all ranks make the same calls in the same order", want)) {
					return fmt.Errorf("rank %d: %v; want %q", m.comm.Rank(), err, want)
				}
				return nil
			})
		})
	}
}
