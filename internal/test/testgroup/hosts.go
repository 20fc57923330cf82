package testgroup

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// networks returns the RDMA devices to test with, or none.
func networks() []string {
	names := os.Getenv("MSCCLGO_TEST_IB_DEVICES")
	if names == "" {
		return nil
	}
	return strings.Split(names, ",")
}

// Messages returns how many of n messages a schedule has: a third where [testdev.Slow] says so.
func Messages(n int) int {
	if testdev.Slow() {
		return n / 3
	}
	return n
}

// Over returns the options of n ranks that reach each other over one transport only. Over InfiniBand
// they take the devices to test with in turn, and the test is skipped where there are none.
func Over(t testing.TB, transport registeredmem.Transports, n int) []communicator.Options {
	t.Helper()
	names := networks()
	if transport == registeredmem.InfiniBand && names == nil {
		t.Skip("MSCCLGO_TEST_IB_DEVICES does not name RDMA devices to test with")
	}
	all := make([]communicator.Options, n)
	for rank := range all {
		all[rank].Transports, all[rank].Ethernet.Interface = transport, "lo"
		if names != nil {
			all[rank].InfiniBand.Device = names[rank%len(names)]
		}
	}
	return all
}

// Mixed returns the options of n ranks, four or more, that reach each other over all transports. Of
// every four the first two map each other's memory, the third has shared memory of the host with them, and
// the fourth the network only: InfiniBand to the third where there are devices to test with, and else
// Ethernet.
func Mixed(n int) []communicator.Options {
	const maps, host, net = registeredmem.CudaIPC, registeredmem.SHM, registeredmem.Ethernet
	names := networks()
	all := make([]communicator.Options, n)
	for rank := range all {
		o := &all[rank]
		o.Ethernet.Interface = "lo"
		o.Transports = []registeredmem.Transports{maps | host | net, maps | host | net, host | net, net}[rank%4]
		if names != nil && rank%4 >= 2 {
			o.Transports |= registeredmem.InfiniBand
			o.InfiniBand.Device = names[rank%len(names)]
		}
	}
	return all
}

// Network returns the options of ranks that take each other for ranks of several hosts, rank i on that
// of number hosts[i]: InfiniBand joins these where there are devices to test with, which they take in
// turn, and else Ethernet.
func Network(hosts ...int) []communicator.Options {
	names := networks()
	all := make([]communicator.Options, len(hosts))
	for rank, host := range hosts {
		all[rank].Host = fmt.Sprintf("host %d", host)
		all[rank].Transports = registeredmem.CudaIPC | registeredmem.Ethernet
		if names != nil {
			all[rank].Transports = registeredmem.CudaIPC | registeredmem.InfiniBand
			all[rank].InfiniBand.Device = names[host%len(names)]
		}
	}
	return all
}
