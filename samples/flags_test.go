package samples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// refusal is a line of package log.
var refusal = regexp.MustCompile(`^[0-9/]{10} [0-9:]{8} (.*)\n$`)

// TestFlagsBeforeRanks runs samples with flags and arguments that make no sense. One that
// started ranks would print an error of each, and one more of their launcher.
func TestFlagsBeforeRanks(t *testing.T) {
	dir := programs(t)
	cases := []struct{ args, want string }{
		{"pipe -count 0", "-count"}, {"pipe -count 9223372036854775807", "-count"}, {"pipe -threads 9999", "-threads"},
		{"pipe -blocks 0", "-blocks"}, {"pipe -slots 3", "power of two"}, {"pipe -slots 1", "-slots"}, {"pipe -slot 1", "multiple of 128"},
		{"pipe -n 1", "-n"},
		{"broadcast -root 5", "-root"}, {"broadcast -root -1", "-root"},
		{"customproxy -blocks 65537", "-blocks"}, {"customproxy -threads 1025", "-threads"},
		{"customproxy -rounds 4294967296", "-rounds"}, {"customproxy -darts 4294967296", "-darts"},
	}
	for name := range sources(t) {
		cases = append(cases, struct{ args, want string }{name + " stray", "there are no arguments"})
	}
	for _, c := range cases {
		args := strings.Fields(c.args)
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu")
		out, err := cmd.CombinedOutput()
		line := refusal.FindSubmatch(out)
		if err == nil || line == nil || !strings.Contains(string(line[1]), c.want) {
			t.Errorf("%s: %v, want one sentence on %q:\n%s", c.args, err, c.want, out)
		}
	}
}
