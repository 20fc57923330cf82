package communicator_test

import (
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// TestCompilingIsAwaited has rank 2 compile for longer than waits have, in kernels and on the host. Where it does not
// come then, it is named.
func TestCompilingIsAwaited(t *testing.T) {
	for name, c := range map[string]struct{ onHost, comes bool }{
		"in a kernel": {false, true}, "on the host": {true, true}, "and then does not come": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			testdev.Parallel(t)
			comms := group(t, 3, communicator.Options{Timeout: verdictTimeout / 2, Scratch: 4096})
			all := workers(t, comms)
			each(t, 3, func(rank int) error {
				group, err := comms[rank].Group(t.Context())
				if err != nil {
					return err
				}
				if rank == 2 {
					compiled := comms[rank].Device().Internal().BeginBusy("compiles slow.cu", true)
					time.Sleep(verdictTimeout)
					compiled()
				}
				switch {
				case c.onHost:
					return comms[rank].Barrier(t.Context())
				case rank == 2 && !c.comes:
					return nil
				}
				if err := all[rank].launch("barriers", 1, 32, group, uint32(1)); err != nil {
					return err
				}
				if err := comms[rank].Synchronize(t.Context(), all[rank].stream); c.comes {
					return err
				}
				return nil
			})
			if !c.comes {
				blames(t, name, comms, 2, "rank 2 did not come: rank")
				settled(t, all)
			}
		})
	}
}
