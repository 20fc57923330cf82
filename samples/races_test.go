package samples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestNoRaces runs the samples under the race finder, with two and four ranks.
func TestNoRaces(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var names []string
	for name := range sources(t) {
		if name != "elastic" { // it starts ranks of its own
			names = append(names, name)
		}
	}
	slices.Sort(names)
	packages := []string{"../cmd/mscclgo"}
	for _, name := range names {
		packages = append(packages, "./"+name)
	}
	run := func(program string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
		}
	}
	run("go", append([]string{"build", "-o", dir + "/"}, packages...)...)
	for _, name := range names {
		for _, ranks := range []string{"2", "4"} {
			if testing.Short() && ranks == "2" && name != "pingpong" && name != "bidirectional" {
				continue
			}
			if ranks == "4" && (name == "pingpong" || name == "bidirectional") {
				continue // they are of two ranks
			}
			run(filepath.Join(dir, "mscclgo"), "race", "-n", ranks, "--", filepath.Join(dir, name))
		}
	}
}
