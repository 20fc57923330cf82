package gpu_test

import (
	"errors"
	"os"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestDMABuf(t *testing.T) {
	d := testdev.Open(t, 0)
	pinned, err := d.AllocHost(64)
	testerr.Check(t, err)
	defer pinned.Close()
	if _, _, err := pinned.Internal().DMABuf(); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("pinned memory: %v", err)
	}
	whole := testerr.Must(gpu.Upload(d, make([]byte, 1<<16)))(t)
	part := testerr.Must(whole.Slice(5000, 100))(t)
	file, offset, err := part.Internal().DMABuf()
	switch {
	case err == nil:
		if want := uint64(part.Ptr()) % uint64(os.Getpagesize()); offset != want {
			t.Errorf("it starts at %d, want %d", offset, want)
		}
		file.Close()
	case !errors.Is(err, mscclgo.ErrUnsupported):
		t.Error(err)
	}
	empty := testerr.Must(whole.Slice(0, 0))(t)
	if _, _, err := empty.Internal().DMABuf(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no memory: %v", err)
	}
	whole.Close()
	if _, _, err := part.Internal().DMABuf(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("closed memory: %v", err)
	}
}
