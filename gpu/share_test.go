package gpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// The environment of the process that TestShare starts, with the memory's descriptor
// as number 3.
const (
	childDevice   = "MSCCLGO_GPU_TEST_CHILD_DEVICE"
	childCapacity = "MSCCLGO_GPU_TEST_CHILD_CAPACITY"
)

// TestShare passes memory to another process, which writes the second half and
// ends without giving anything back.
func TestShare(t *testing.T) {
	d, peer := testdev.Open(t, 0), testdev.Open(t, 1)
	if !d.Info().DescriptorExport || !peer.CanAccess(d.Info().UUID) {
		t.Skip("the devices cannot share memory by descriptor")
	}
	const size = 100_000
	b := must[*gpu.Buffer](t)(gpu.Upload(d, counting(size, 1)))
	file, err := b.Internal().Export()
	check(t, err)
	defer file.Close()
	cmd := exec.CommandContext(deadline(t), os.Args[0])
	cmd.Env = append(os.Environ(), childDevice+"="+peer.String(), fmt.Sprintf("%s=%d", childCapacity, b.Internal().Capacity()))
	cmd.ExtraFiles = []*os.File{file}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the other process: %v: %s", err, out)
	}
	want := append(counting(size/2, 1), bytes.Repeat([]byte{42}, size/2)...)
	testcmp.Equal(t, "the memory after the other process", contents[byte](t, b, size), want)
}

// child is the other process.
func child() error {
	capacity, err := strconv.ParseUint(os.Getenv(childCapacity), 10, 64)
	if err != nil {
		return err
	}
	d, err := gpu.Open(os.Getenv(childDevice))
	if err != nil {
		return err
	}
	b, err := d.Internal().Import(os.NewFile(3, "memory"), capacity)
	if err != nil {
		return err
	}
	const size = 100_000
	got := make([]byte, size)
	if err := gpu.CopyOut(got, b); err != nil {
		return err
	}
	if diff := testcmp.Diff(counting(size, 1), got); diff != "" {
		return fmt.Errorf("the memory (-want +got):\n%s", diff)
	}
	if _, err := b.Internal().Export(); !errors.Is(err, mscclgo.ErrUnsupported) {
		return fmt.Errorf("exporting a mapping: %v", err)
	}
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	if err := s.Fill(b, size/2, 42, size/2); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return s.Synchronize(ctx)
}
