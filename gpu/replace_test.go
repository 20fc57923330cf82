package gpu_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// holds fails the test unless a buffer is filled with a value.
func holds(t *testing.T, what string, b *gpu.Buffer, value byte) {
	t.Helper()
	got := make([]byte, b.Size())
	testerr.Check(t, gpu.CopyOut(got, b))
	testcmp.Equal(t, what, got, bytes.Repeat([]byte{value}, len(got)))
}

// TestRenewAndRemap replaces a buffer's memory, whose old content a mapping keeps, and then
// has the mapping follow. Both stay at their addresses.
func TestRenewAndRemap(t *testing.T) {
	dev := testdev.Open(t, 0)
	own, err := dev.Alloc(1 << 16)
	testerr.Check(t, err)
	defer own.Close()
	fill := func(value byte) {
		t.Helper()
		testerr.Check(t, gpu.CopyIn(own, bytes.Repeat([]byte{value}, int(own.Size()))))
	}
	fill(1)
	file, err := own.Internal().Export()
	if errors.Is(err, mscclgo.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	mapped := testerr.Must(dev.Internal().Import(file, own.Internal().Capacity()))(t)
	defer mapped.Close()
	file.Close()
	part := testerr.Must(mapped.Slice(0, own.Size()))(t)
	at, there := own.Ptr(), mapped.Ptr()
	if err := own.Internal().Remap(nil); err == nil {
		t.Error("own memory was remapped")
	}
	if err := mapped.Internal().Renew(); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("renew a mapping: %v", err)
	}
	testerr.Check(t, own.Internal().Renew())
	fill(2)
	holds(t, "the mapping of the old memory", part, 1)
	file = testerr.Must(own.Internal().Export())(t)
	defer file.Close()
	testerr.Check(t, mapped.Internal().Remap(file))
	holds(t, "the mapping of the new memory", part, 2)
	holds(t, "the new memory", own, 2)
	if own.Ptr() != at || mapped.Ptr() != there {
		t.Errorf("the memory moved from %#x to %#x, the mapping from %#x to %#x", at, own.Ptr(), there, mapped.Ptr())
	}
	testerr.Check(t, own.Close())
	if err := own.Internal().Renew(); err == nil {
		t.Error("closed memory was renewed")
	}
}
