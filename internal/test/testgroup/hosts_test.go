package testgroup_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestMixed asks which transports ranks have to each other.
func TestMixed(t *testing.T) {
	const maps, host, net = registeredmem.CudaIPC, registeredmem.SHM, registeredmem.Ethernet
	far := net
	if os.Getenv("MSCCLGO_TEST_IB_DEVICES") != "" {
		far = registeredmem.InfiniBand
	}
	want := [4][4]registeredmem.Transports{{maps, maps, host, net}, {maps, maps, host, net}, {host, host, maps, far}, {net, net, far, maps}}
	testgroup.RunEach(t, testgroup.Mixed(4), func(_ context.Context, c *communicator.Communicator) error {
		for peer, want := range want[c.Rank()] {
			if got, err := c.Transport(peer); err != nil || got != want {
				return fmt.Errorf("to rank %d: %v, %v; want %v", peer, got, err, want)
			}
		}
		return nil
	})
}
