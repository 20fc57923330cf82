package communicator_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/communicator"
)

// TestMayRunOn asks for CPUs that this process may run on and for some that it may not, as in a container that
// has none near its device: a proxy that was bound to those could not start.
func TestMayRunOn(t *testing.T) {
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mask); err != nil {
		t.Fatal(err)
	}
	var may int
	for !mask.IsSet(may) {
		may++
	}
	const absent, beyond = 1000, 5000 // the system has fewer, and a set has no room for that many
	for _, c := range []struct {
		cpus []int
		want error
	}{
		{[]int{may}, nil},
		{[]int{may, absent}, nil},
		{[]int{may, beyond}, nil},
		{[]int{absent}, unix.EINVAL},
		{[]int{beyond}, unix.EINVAL},
		{nil, unix.EINVAL},
	} {
		if err := communicator.MayRunOn(c.cpus); !errors.Is(err, c.want) {
			t.Errorf("CPUs %v: %v, want %v", c.cpus, err, c.want)
		}
	}
}
