package race_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// commandLine builds the command mscclgo, which runs ranks under the finder. It skips the test where it cannot.
func commandLine(ctx context.Context, t *testing.T) string {
	t.Helper()
	if detector {
		t.Skip("the ranks are programs without Go's race detector, as when this test runs without it")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	program := filepath.Join(t.TempDir(), "mscclgo")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, "../../cmd/mscclgo").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestAlgorithms runs all algorithms of all collectives under the finder, with two and four
// ranks: where they map each other's memory, and over each transport that a machine has by itself.
// A short run has two ranks and one size over the transports, and four where memory is mapped. Then it runs all in
// place and not, where ranks' parts differ and with elements in the middle of a word; a short run some of these. Then
// it runs the algorithms for several hosts, on two hosts of two ranks, and on hosts of which some ranks have no twins.
func TestAlgorithms(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	program := commandLine(ctx, t)
	bench := []string{program, "bench", "-blocks", "4", "-threads", "96", "-scratch", "4M", "-graph=false", "-replays", "1", "-rounds", "1"}
	run := func(ranks, transports string, args ...string) {
		cmd := exec.CommandContext(ctx, program, slices.Concat([]string{"race", "-n", ranks, "--"}, args,
			[]string{"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "gather", "scatter"})...)
		cmd.Env = append(os.Environ(), "MSCCLGO_DEVICE=emu", "MSCCLGO_TRANSPORTS="+transports)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s ranks by %q, %q: %v\n%s", ranks, transports, args, err, out)
		}
	}
	for _, transports := range []string{"", "ethernet", "shm"} {
		for _, c := range []struct{ ranks, first, last string }{{"2", "1K", "32K"}, {"4", "16K", "16K"}} {
			if testing.Short() && (transports == "") == (c.ranks == "2") {
				continue
			}
			if testing.Short() {
				c.first = c.last
			}
			run(c.ranks, transports, append(bench, "-algo", "all", "-b", c.first, "-e", c.last, "-f", "32", "-iters", "1", "send-receive")...)
		}
	}
	for _, ranks := range []string{"2", "3", "4"} {
		for _, odd := range []struct{ kind, size string }{{"f16", "16400"}, {"u8", "16411"}, {"f32", "50004"}} {
			places := "in,out"
			if testing.Short() {
				places = "in"
			}
			if !testing.Short() || ranks == "2" && odd.kind == "f16" {
				run(ranks, "", append(bench, "-algo", "all", "-place", places, "-d", odd.kind, "-b", odd.size, "-e", odd.size, "-iters", "1", "send-receive")...)
			}
		}
	}
	for _, ranks := range []string{"4", "5"} {
		hosts := append([]string{"sh", "-c", `MSCCLGO_HOST_ID=$((RANK / 2)) exec "$@"`, "sh"}, bench...)
		if !testing.Short() {
			hosts = append(hosts, "-place", "in,out")
		}
		run(ranks, "", append(hosts, "-algo", "hier", "-b", "16K", "-e", "16K", "-iters", "2")...)
	}
}
