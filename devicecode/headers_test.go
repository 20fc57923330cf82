package devicecode_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// strict are the warnings under which the library's own code compiles.
var strict = devicecode.Options{Flags: []string{"-Wall", "-Wextra", "-Werror"}}

// TestHeadersForEmulatedDevice compiles each header by itself, so that it
// includes what it needs, without a warning.
func TestHeadersForEmulatedDevice(t *testing.T) {
	headers := devicecode.Headers()
	err := fs.WalkDir(headers, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			source := "#include <" + path + ">\nextern \"C\" __global__ void nothing() {}\n"
			testerr.Must(devicecode.Compile(t.Context(), devicecode.ArchEmu, path, []byte(source), strict))(t)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSamplesForEmulatedDevice compiles every .cu of the samples and collectives.
func TestSamplesForEmulatedDevice(t *testing.T) {
	samples, err := filepath.Glob("../samples/*/*.cu")
	if err != nil || len(samples) == 0 {
		t.Fatalf("found no samples: %v", err)
	}
	collectives, err := filepath.Glob("../collective/kernels/*.cu")
	if err != nil || len(collectives) == 0 {
		t.Fatalf("found no collectives: %v", err)
	}
	for _, path := range append(samples, collectives...) {
		t.Run(strings.TrimPrefix(path, "../"), func(t *testing.T) {
			t.Parallel()
			source := testerr.Must(os.ReadFile(path))(t)
			testerr.Must(devicecode.Compile(t.Context(), devicecode.ArchEmu, path, source, strict))(t)
		})
	}
}
