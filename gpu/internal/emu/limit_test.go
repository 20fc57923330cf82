package emu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const limitVariable = "MSCCLGO_TEST_LIMIT"

// TestAddressSpaceLimit: in a process whose address space is limited, as by batch
// systems, a launch for which there is no room fails, and neither hangs nor ends the
// process; smaller ones go on.
func TestAddressSpaceLimit(t *testing.T) {
	for _, how := range []string{"at the first launch", "in the middle"} {
		t.Run(how, func(t *testing.T) {
			if os.Getenv(limitVariable) != "" {
				limited(t, how == "in the middle")
				return
			}
			for range 3 { // which block finds no room is left to chance
				pattern := strings.ReplaceAll("^TestAddressSpaceLimit$/^"+how+"$", " ", "_")
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, os.Args[0], "-test.run="+pattern, "-test.v")
				// As many arenas of the C library's as a machine of many cores has.
				cmd.Env = append(os.Environ(), limitVariable+"=1", "GLIBC_TUNABLES=glibc.malloc.arena_test=256")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("the process with a limit: %v\n%s", err, out)
				}
			}
		})
	}
}

// limited runs in a process of its own.
func limited(t *testing.T, warm bool) {
	d := open(t)
	m := load(t, d, `
extern "C" __global__ void meet(unsigned* out, unsigned blocks) {
  __syncthreads();  // all threads have begun
  atomicAdd(out, 1u);
  while (atomicAdd(out, 0u) < blocks * blockDim.x) __nanosleep(1000);
}
`)
	k := kernelOf(t, m, "meet")
	out := alloc(t, d, 4)
	write(t, d, out.Ptr(), []uint32{0})
	if warm {
		ran(t, d, k, shape(4, 64), out.Ptr(), uint32(4))
		write(t, d, out.Ptr(), []uint32{0})
	}
	// Room for some of the 8 blocks that wait for each other, which map 264 MiB each.
	const room = 1 << 30
	now := addressSpace(t)
	must(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: now + room, Max: now + room}))

	s := stream(t, d)
	must(t, s.Launch(k, shape(64, 1024), pack(out.Ptr(), uint32(8))))
	testerr.Expect(t, s.Synchronize(deadline(t)), mscclgo.ErrSystem, "meet", "out of memory", "stacks", "threads", "ulimit -v")

	write(t, d, out.Ptr(), []uint32{0})
	ran(t, d, k, shape(8, 128), out.Ptr(), uint32(8))
	if n := read[uint32](t, d, out.Ptr(), 1)[0]; n != 8*128 {
		t.Errorf("%d threads of the smaller launch ran, want %d", n, 8*128)
	}
}

// addressSpace returns the bytes of address space that this process has mapped.
func addressSpace(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for _, line := range bytes.Split(status, []byte("\n")) {
		var kib uint64
		if _, err := fmt.Sscanf(string(line), "VmSize: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatal("no VmSize")
	return 0
}

// TestDescriptorLimit loads a module where the process may open no file for the loader: the error
// tells that, and does not blame the image.
func TestDescriptorLimit(t *testing.T) {
	d := open(t)
	image, err := devicecode.Compile(t.Context(), "emu", "k.cu", []byte(`extern "C" __global__ void k() {}`), devicecode.Options{})
	must(t, err)
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	probe, err := unix.Dup(0) // the lowest number that is free, which the memory file gets
	must(t, err)
	unix.Close(probe)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(probe) + 1, Max: before.Max}))
	_, err = d.LoadModule(image)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	testerr.Expect(t, err, mscclgo.ErrSystem, "load a module", "too many open files")
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("the error does not wrap EMFILE: %v", err)
	}
	m, err := d.LoadModule(image)
	must(t, err)
	must(t, m.Close())
}
