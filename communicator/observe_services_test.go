package communicator

import (
	"runtime"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestClosedServices has an observer look no more at services that are closed, which it would keep, and go on
// with one that is stopped and may be started again.
func TestClosedServices(t *testing.T) {
	device := testdev.Open(t, 0)
	all, _ := observers(0)
	services := make([]*proxyservice.ProxyService, 4)
	for i := range services {
		s := testerr.Must(proxyservice.New(device, proxyservice.ServiceOptions{}))(t)
		t.Cleanup(func() { s.Close() })
		if i > 0 { // the first never starts
			testerr.Check(t, s.Start(t.Context()))
		}
		services[i] = s
		all[0].serves(s)
	}
	watched := func() (numbers []int) {
		all[0].tick(noNotes)
		for _, s := range all[0].services {
			numbers = append(numbers, slices.Index(services, s.proxy.Value()))
		}
		return numbers
	}
	testcmp.Equal(t, "services", watched(), []int{0, 1, 2, 3})
	testerr.Check(t, services[2].Stop(t.Context()))
	for _, i := range []int{0, 3} {
		testerr.Check(t, services[i].Close())
	}
	testcmp.Equal(t, "services of which two are closed and one is stopped", watched(), []int{1, 2})
	runtime.KeepAlive(services)
}
