package devicecode_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
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
			if _, err := devicecode.Compile(t.Context(), devicecode.ArchEmu, path, []byte(source), strict); err != nil {
				t.Fatal(err)
			}
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
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := devicecode.Compile(t.Context(), devicecode.ArchEmu, path, source, strict); err != nil {
				t.Fatal(err)
			}
		})
	}
}
