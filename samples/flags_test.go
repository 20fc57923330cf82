package samples_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// refusal is a line of package log.
var refusal = regexp.MustCompile(`^[0-9/]{10} [0-9:]{8} (.*)\n$`)

// TestFlagsBeforeRanks runs samples with flags and arguments that make no sense. One that
// started ranks would print an error of each, and one more of their launcher.
func TestFlagsBeforeRanks(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	cases := []struct{ args, want string }{
		{"pipe -count 0", "-count"}, {"pipe -count 9223372036854775807", "-count"}, {"pipe -threads 9999", "-threads"},
		{"pipe -blocks 0", "-blocks"}, {"pipe -slots 3", "3 slots"}, {"pipe -slots 1", "-slots"}, {"pipe -slot 1", "slots of 1 bytes"},
		{"pipe -n 1", "-n"},
		{"broadcast -root 5", "-root"}, {"broadcast -root -1", "-root"},
		{"customproxy -blocks 65537", "-blocks"}, {"customproxy -threads 1025", "-threads"},
		{"customproxy -rounds 4294967296", "-rounds"}, {"customproxy -darts 4294967296", "-darts"},
	}
	packages := []string{}
	for name := range sources(t) {
		packages = append(packages, "./"+name)
		cases = append(cases, struct{ args, want string }{name + " stray", "there are no arguments"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	if out, err := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, packages...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range cases {
		args := strings.Fields(c.args)
		cmd := exec.CommandContext(ctx, filepath.Join(dir, args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu")
		out, err := cmd.CombinedOutput()
		line := refusal.FindSubmatch(out)
		if err == nil || line == nil || !strings.Contains(string(line[1]), c.want) {
			t.Errorf("%s: %v, want one sentence on %q:\n%s", c.args, err, c.want, out)
		}
	}
}
