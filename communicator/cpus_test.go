package communicator_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestBinding has a thread that may run on one CPU of several, as taskset leaves it, and proxies for a device whose node
// has that CPU and others, or only others.
func TestBinding(t *testing.T) {
	c := group(t, 1, communicator.Options{})[0]
	got := make(chan [2][]int)
	cpu := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		var mask unix.CPUSet
		testerr.Report(t, unix.SchedGetaffinity(0, &mask))
		last := 8*len(mask)*8 - 1
		for last > 0 && !mask.IsSet(last) {
			last--
		}
		var one unix.CPUSet
		one.Set(last)
		testerr.Report(t, unix.SchedSetaffinity(0, &one))
		cpu <- last
		const beyond = 5000 // more than a set has room for
		got <- [2][]int{communicator.Within(c, []int{0, last, last + 1, beyond}), communicator.Within(c, []int{last + 1, beyond})}
	}()
	own := []int{<-cpu}
	cpus := <-got
	if own[0] == 0 {
		cpus[0] = cpus[0][1:] // it was named twice
	}
	testcmp.Equal(t, "of a node that has the CPU", cpus[0], own)
	testcmp.Equal(t, "of a node that has not", cpus[1], own)
}
