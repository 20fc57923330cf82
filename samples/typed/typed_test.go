package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
)

func TestTyped(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("ranks=%d", ranks), func(t *testing.T) {
			testgroup.Run(t, ranks, communicator.Options{}, scaledSum)
		})
	}
}

// TestGenerated checks that kernels.go is what mscclgo gen writes.
func TestGenerated(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	want, err := os.ReadFile("kernels.go")
	if err != nil {
		t.Skip("the sources are not here")
	}
	source := testerr.Must(os.ReadFile("kernels.cu"))(t)
	dir := t.TempDir()
	testerr.Check(t, os.WriteFile(filepath.Join(dir, "kernels.cu"), source, 0o600))
	out := filepath.Join(dir, "kernels.go")
	cmd := exec.Command("go", "run", "-buildvcs=false", "github.com/mscclgo/mscclgo/cmd/mscclgo", "gen", "-package", "main", "-o", out, filepath.Join(dir, "kernels.cu"))
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := testerr.Must(os.ReadFile(out))(t)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("kernels.go is old; run go generate (-kernels.go +what it would be):\n%s", diff)
	}
}
