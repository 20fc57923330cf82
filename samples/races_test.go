package samples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNoRaces runs the samples under the race finder, with two and four ranks.
func TestNoRaces(t *testing.T) {
	dir := programs(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for name := range sources(t) {
		if name == "elastic" { // it starts ranks of its own
			continue
		}
		for _, ranks := range []string{"2", "4"} {
			if testing.Short() && ranks == "2" && name != "pingpong" && name != "bidirectional" {
				continue
			}
			if ranks == "4" && (name == "pingpong" || name == "bidirectional") {
				continue // they are of two ranks
			}
			args := []string{"race", "-n", ranks, "--", filepath.Join(dir, name)}
			cmd := exec.CommandContext(ctx, filepath.Join(dir, "mscclgo"), args...)
			cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("mscclgo %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	}
}
