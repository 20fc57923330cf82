package communicator_test

import (
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
)

func TestGroup(t *testing.T) {
	comms := group(t, 3, communicator.Options{Scratch: 1000})
	all := workers(t, comms)
	each(t, 3, func(rank int) error {
		g, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if g.Rank != uint32(rank) || g.Size != 3 || g.ScratchSize != 1024 || g.ScratchOffset < devicecode.MaxBlocks*3*4 {
			return fmt.Errorf("group %+v", g)
		}
		again, err := comms[rank].Group(t.Context())
		if err != nil {
			return err
		}
		if again != g {
			return fmt.Errorf("the second call gives %+v, the first gave %+v", again, g)
		}
		for _, blocks := range []int{1, 4, 2} {
			if err := all[rank].launch("barriers", blocks, 32, g, 10); err != nil {
				return err
			}
		}
		if err := comms[rank].Synchronize(t.Context(), all[rank].stream); err != nil {
			return err
		}
		return all[rank].want(done)
	})
}

func TestDisagreeOnScratch(t *testing.T) {
	options := []communicator.Options{{Scratch: 4096}, {Scratch: 8192}, {Scratch: 4096}}
	comms := groupWith(t, options)
	before := take(t, comms)
	errs := outcomes(t, 3, func(rank int) error {
		_, err := comms[rank].Group(t.Context())
		return err
	})
	for rank, err := range errs {
		failing(t, rank, err, mscclgo.ErrInvalid, "Options.Scratch")
	}
	take(t, comms).grown(t, before)
}

// TestGroupOutOfMemory has one rank ask for more than there is.
func TestGroupOutOfMemory(t *testing.T) {
	comms := groupWith(t, []communicator.Options{{}, {Scratch: 1 << 40}})
	before := take(t, comms)
	errs := outcomes(t, 2, func(rank int) error {
		_, err := comms[rank].Group(t.Context())
		return err
	})
	failing(t, 0, errs[0], mscclgo.ErrRemote, "peer 1")
	failing(t, 1, errs[1], mscclgo.ErrSystem)
	take(t, comms).grown(t, before)
}
