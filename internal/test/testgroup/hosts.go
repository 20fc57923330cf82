package testgroup

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ib"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Network returns the options of groups on several hosts: InfiniBand joins these where there are devices
// to test with, and else Ethernet.
func Network() communicator.Options {
	if names := os.Getenv("MSCCLGO_TEST_IB_DEVICES"); names != "" {
		device, _, _ := strings.Cut(names, ",")
		return communicator.Options{Transports: registeredmem.CudaIPC | registeredmem.InfiniBand, InfiniBand: ib.Options{Device: device}}
	}
	return communicator.Options{Transports: registeredmem.CudaIPC | registeredmem.Ethernet}
}

// OnHosts opens an emulated device for each rank, rank i's on the host of number hosts[i]:
// devices of different hosts do not reach each other, so that a group on them is as one on several
// hosts. It skips the test on GPUs.
func OnHosts(t *testing.T, hosts ...int) (devices []*gpu.Device) {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("GPUs of one machine reach each other, whatever its name")
	}
	for rank, host := range hosts {
		t.Setenv(hostid.Env, fmt.Sprintf("host %d", host))
		devices = append(devices, testdev.Open(t, rank))
	}
	return devices
}
