package netlab_test

import (
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
)

// A test of two hosts, of which the second loses its link. It is compiled and
// not run, for an example cannot be skipped where there is no root.
func ExampleNew() {
	_ = func(t *testing.T) {
		lab := netlab.New(t, 2, netlab.Options{MTU: 1280})
		for _, host := range lab.Hosts {
			if err := host.Command(t.Context(), "ip", "address").Run(); err != nil {
				t.Error(err)
			}
		}
		lab.Hosts[1].Unplug()
	}
}
