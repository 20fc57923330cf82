package conntest_test

import (
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/conntest"
	"github.com/mscclgo/mscclgo/connection/cudaipc"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// newRanks makes ranks that are connected over CUDA IPC. For a transport of one's own,
// connection.New takes the place of the endpoints.
func newRanks(t testing.TB) (a, b *conntest.Rank) {
	var ranks [2]*conntest.Rank
	var endpoints [2]connection.Endpoint
	var addresses [2][]byte
	for i := range ranks {
		device, err := gpu.Open("emu")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { device.Close() })
		registry, err := registeredmem.NewRegistry(registeredmem.Options{Rank: i, Device: device, Group: [16]byte{1}, Secret: [32]byte{2}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { registry.Close() })
		if endpoints[i], err = cudaipc.NewEndpoint(registry); err != nil {
			t.Fatal(err)
		}
		if addresses[i], err = endpoints[i].MarshalBinary(); err != nil {
			t.Fatal(err)
		}
		ranks[i] = &conntest.Rank{Registry: registry, Allocates: true}
	}
	for i, r := range ranks {
		var err error
		if r.Connection, err = endpoints[i].Connect(t.Context(), addresses[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	return ranks[0], ranks[1]
}

// The test of a transport, which lies beside it. Each part of it is a subtest on ranks of its own.
func ExampleTestConnection() {
	TestConnection := func(t *testing.T) {
		conntest.TestConnection(t, newRanks)
	}
	_ = TestConnection
}
