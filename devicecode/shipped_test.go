package devicecode_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/keep"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestShipped compiles for the folder of an installation, and takes the image from there where there is
// neither a compiler nor a cache, whoever may write to it. What is compiled for the cache is not taken from there.
func TestShipped(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "images")
	source := []byte(`extern "C" __global__ void shipped(int* x) { *x = 5; }`)
	compile := func(ctx context.Context, text []byte) ([]byte, error) {
		return devicecode.Compile(ctx, devicecode.ArchEmu, "shipped.cu", text, devicecode.Options{CacheDir: t.TempDir()})
	}
	want := testerr.Must(compile(keep.Shipped(t.Context(), folder), source))(t)
	files, _ := filepath.Glob(filepath.Join(folder, "*"))
	if len(files) != 1 {
		t.Fatalf("the folder of images has %q, want one", files)
	}
	testerr.Check(t, os.Chmod(files[0], 0o666))
	t.Setenv("MSCCLGO_IMAGES", folder)
	t.Setenv("CXX", "/nowhere/g++")
	if got, err := compile(t.Context(), source); err != nil || !bytes.Equal(got, want) {
		t.Errorf("an image of %d bytes and the error %v, want the one that was shipped, of %d bytes", len(got), err, len(want))
	}
	if _, err := compile(t.Context(), append(source, ' ')); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("another source: %v, want that there is no compiler", err)
	}
	if _, err := compile(keep.Images(t.Context()), source); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("an image for the cache: %v, want that there is no compiler", err)
	}
	testerr.Check(t, os.WriteFile(files[0], want, 0o644))
	if _, err := compile(t.Context(), source); !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Errorf("a damaged file: %v, want that there is no compiler", err)
	}
}
