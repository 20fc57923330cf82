package gpu_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// holds fails the test unless a buffer is filled with a value.
func holds(t *testing.T, what string, b *gpu.Buffer, value byte) {
	t.Helper()
	got := make([]byte, b.Size())
	if err := gpu.CopyOut(got, b); err != nil {
		t.Fatal(err)
	}
	testcmp.Equal(t, what, got, bytes.Repeat([]byte{value}, len(got)))
}

// TestRenewAndRemap replaces a buffer's memory, whose old content a mapping keeps, and then
// has the mapping follow. Both stay at their addresses.
func TestRenewAndRemap(t *testing.T) {
	dev := testdev.Open(t, 0)
	own, err := dev.Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	fill := func(value byte) {
		t.Helper()
		if err := gpu.CopyIn(own, bytes.Repeat([]byte{value}, int(own.Size()))); err != nil {
			t.Fatal(err)
		}
	}
	fill(1)
	file, err := own.Internal().Export()
	if errors.Is(err, mscclgo.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	mapped, err := dev.Internal().Import(file, own.Internal().Capacity())
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	file.Close()
	part, err := mapped.Slice(0, own.Size())
	if err != nil {
		t.Fatal(err)
	}
	at, there := own.Ptr(), mapped.Ptr()
	if err := own.Internal().Remap(nil); err == nil {
		t.Error("own memory was remapped")
	}
	if err := mapped.Internal().Renew(); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("renew a mapping: %v", err)
	}
	if err := own.Internal().Renew(); err != nil {
		t.Fatal(err)
	}
	fill(2)
	holds(t, "the mapping of the old memory", part, 1)
	if file, err = own.Internal().Export(); err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := mapped.Internal().Remap(file); err != nil {
		t.Fatal(err)
	}
	holds(t, "the mapping of the new memory", part, 2)
	holds(t, "the new memory", own, 2)
	if own.Ptr() != at || mapped.Ptr() != there {
		t.Errorf("the memory moved from %#x to %#x, the mapping from %#x to %#x", at, own.Ptr(), there, mapped.Ptr())
	}
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	if err := own.Internal().Renew(); err == nil {
		t.Error("closed memory was renewed")
	}
}
