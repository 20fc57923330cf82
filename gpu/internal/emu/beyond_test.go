package emu_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestBeyondMemory accesses what is beside memory of each kind: that is the kernel's error, and tells the
// memory and the line.
func TestBeyondMemory(t *testing.T) {
	d, owner := open(t), open(t)
	m := load(t, d, `
__device__ __noinline__ void store(char* p, long at) {
  p[at] = 1;
}
extern "C" __global__ void touch(char* p, long at, int write, char* out) {
  if (write) store(p, at);
  else
    *out = p[at];
}
`)
	k, out := kernelOf(t, m, "touch"), alloc(t, d, 1)
	page := int64(os.Getpagesize())
	mine := alloc(t, d, 4000)
	fd, err := mine.ExportFD()
	must(t, err)
	imported, err := d.ImportFD(fd, mine.Size())
	must(t, err, unix.Close(fd))
	borrowed := alloc(t, owner, 4096)
	must(t, d.Access(owner, borrowed.Ptr(), 8))
	host, err := d.AllocHost(4000)
	must(t, err)
	for _, c := range []struct {
		base  uint64
		at    int64
		write int32
		says  string
	}{
		{mine.Ptr(), page, 0, fmt.Sprintf(": a read %d bytes behind the 4000 bytes of memory of emu:0, allocated at emu_test.go:53; at TestBeyondMemory.cu:8", page-4000)},
		{mine.Ptr(), page + 1<<19, 1, "behind the 4000 bytes of memory of emu:0, allocated at emu_test.go:53; at TestBeyondMemory.cu:3"},
		{mine.Ptr(), -1, 1, ": a write 1 bytes before the 4000 bytes of memory"},
		{mine.Ptr(), -1 << 20, 1, ": a write 1048576 bytes before the 4000 bytes of memory"},
		{imported.Ptr(), page, 1, "of imported memory of emu:0, allocated at beyond_test.go:"},
		{imported.Ptr(), -1, 0, "of imported memory of emu:0"},
		{borrowed.Ptr(), page, 1, "of memory of emu:0, allocated at emu_test.go:53"},
		{host.Ptr(), page + 96, 1, fmt.Sprintf("a write %d bytes behind the 4000 bytes of host memory of emu:0", page+96-4000)},
		{host.Ptr(), -8, 0, "a read 8 bytes before the 4000 bytes of host memory"},
	} {
		err := run(t, d, k, shape(1, 1), c.base, c.at, c.write, out.Ptr())
		testerr.Expect(t, err, mscclgo.ErrSystem, "block (0,0,0), thread (0,0,0): illegal memory access at 0x", c.says)
	}
	ran(t, d, k, shape(1, 1), mine.Ptr(), int64(3999), int32(1), out.Ptr())
}
