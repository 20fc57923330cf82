// Package tutorial_test runs the programs of the tutorial.
package tutorial_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestPrograms builds and runs each program, as a reader does, and looks for what it says.
func TestPrograms(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	says := map[string][]string{
		"01-channel":            {"rank 0 on emu:0 has: This is rank 0.", "rank 1 on emu:1 has: This is rank 0."},
		"02-packets":            {"rank 0: 100 rounds are right", "rank 1: 100 rounds are right"},
		"03-group":              {"rank 0 has the parts of 4 ranks", "rank 3 has the parts of 4 ranks"},
		"04-ports":              {"rank 0 has 1048576 bytes from rank 1, by CudaIPC"},
		"05-trigger":            {"which added them up: 385"},
		"06-hosts":              {"rank 1 of host [0 1 2 3] has it, by CudaIPC"},
		"06-hosts -pretend":     {"rank 2 of host [0 2] has it, by CudaIPC", "rank 3 of host [1 3] has it, by Ethernet"},
		"07-errors":             {"rank 3 blames rank 2", "channel 'baton' from 2 to 3"},
		"07-errors -forgets -1": {"rank 0: all is well", "rank 3: all is well"},
	}
	folders := testerr.Must(filepath.Glob("0*"))(t)
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin, "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tested := map[string]bool{}
	for line, want := range says {
		args := strings.Fields(line)
		tested[args[0]] = true
		t.Run(line, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, args[0]), args[1:]...)
			cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, w := range want {
				if !strings.Contains(string(out), w) {
					t.Errorf("it does not say %q:\n%s", w, out)
				}
			}
		})
	}
	for _, folder := range folders {
		if !tested[folder] {
			t.Errorf("nothing runs %s", folder)
		}
	}
}
