// Package testdev opens the device that tests run on: an emulated one, or with
// MSCCLGO_TEST_DEVICE=cuda an NVIDIA GPU. A test that asks for more devices than
// there are gets some of them several times.
package testdev

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
)

// Env is the environment variable that names the kind of device, "emu" (the
// default) or "cuda".
const Env = "MSCCLGO_TEST_DEVICE"

// Name returns the name of the device for rank i of a test. It fails the test
// where there is no device of the kind that [Env] asks for.
func Name(t testing.TB, i int) string {
	t.Helper()
	name, err := gpu.Assign(kind(), i)
	if err != nil {
		t.Fatalf("%s=%s: %v", Env, kind(), err)
	}
	if CUDA() {
		keep(t, name)
	}
	return name
}

// kept are the GPUs that stay open until the process ends: to make and to destroy a
// context for each test takes most of a suite's time.
var kept sync.Map // by name

// keep opens a GPU once more, for the process's life.
func keep(t testing.TB, name string) {
	t.Helper()
	once, _ := kept.LoadOrStore(name, sync.OnceValue(func() error {
		_, err := gpu.Open(name)
		return err
	}))
	if err := once.(func() error)(); err != nil {
		t.Fatal(err)
	}
}

// Open opens the device for rank i of a test and closes it when the test ends.
func Open(t testing.TB, i int) *gpu.Device {
	t.Helper()
	d, err := gpu.Open(Name(t, i))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("closing %v: %v", d, err)
		}
	})
	return d
}

// CUDA reports whether the tests run on NVIDIA GPUs, for the few that need what an
// emulated device lacks.
func CUDA() bool { return kind() == "cuda" }

// Apart skips a test of n ranks on a machine with fewer GPUs than that: ranks that share one
// wait for each other's kernels wherever they free memory. Emulated devices do not.
func Apart(t testing.TB, n int) {
	t.Helper()
	if !CUDA() {
		return
	}
	all, err := gpu.List()
	if err != nil {
		t.Fatal(err)
	}
	gpus := 0
	for _, d := range all {
		if strings.HasPrefix(d.Name, "cuda:") {
			gpus++
		}
	}
	if gpus < n {
		t.Skipf("needs %d GPUs, there are %d", n, gpus)
	}
}

// Parallel lets a test run beside others, as testing.T's does, on emulated devices. On a
// GPU it does nothing: what a test loads or frees there may wait for the kernels of others,
// which may wait until their deadline. An emulated machine is slow enough without.
func Parallel(t *testing.T) {
	if !CUDA() && !Slow() {
		t.Parallel()
	}
}

func kind() string {
	if kind := os.Getenv(Env); kind != "" {
		return kind
	}
	return "emu"
}

// Slow reports whether this is a short run in an emulated machine, such as make test's with its RDMA devices: what takes
// thousands of messages elsewhere does with fewer there.
func Slow() bool {
	return testing.Short() && strings.HasPrefix(os.Getenv("MSCCLGO_TEST_IB_DEVICES"), "rxe")
}
