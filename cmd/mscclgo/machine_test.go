package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/bench"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// benchMachine runs scripts/bench-machine on emulated devices, with this program and results of
// its own, and returns what it prints and its exit status.
func benchMachine(t *testing.T, results string, env []string, args ...string) (output string, code int) {
	t.Helper()
	program, err := os.Executable()
	testerr.Check(t, err)
	machine := testerr.Must(filepath.Abs(machineOf("switches")))(t)
	dir := t.TempDir()
	text := "#!/bin/sh\n[ \"$1 $2\" != 'topo -predict' ] || set -- \"$@\" -load '" + machine + "'\n" +
		testproc.MainEnv + "=1 exec '" + program + "' \"$@\"\n"
	testerr.Check(t, os.WriteFile(filepath.Join(dir, "mscclgo"), []byte(text), 0o777))
	cmd := exec.CommandContext(t.Context(), "../../scripts/bench-machine", append([]string{dir}, args...)...)
	cmd.Env = append(os.Environ(), append([]string{"RESULTS=" + results, "DEVICES=emu", "QUICK=1", "LARGEST=4K", "BUDGET=1s", "SOAK=1s", "COLLECTIVES=send-receive", "TYPES=f16"}, env...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// TestBenchMachine rehearses what is to be run on a machine of many GPUs, in which a part
// fails, and the others run.
func TestBenchMachine(t *testing.T) {
	results := t.TempDir()
	output, code := benchMachine(t, results, nil, "2", "check", "tune", "builtin", "two", "odd", "few", "soak")
	for _, want := range []string{"check-2-f16", "\ntuned, 2 ranks\n", "\nthe built-in choice, 2 ranks\n", "\n1K on 2 ranks over", "\nodd counts", " calls, no wrong element\n", "\nnothing failed"} {
		if code != 0 || !strings.Contains(output, want) {
			t.Errorf("exit status %d, and it lacks %q:\n%s", code, want, output)
		}
	}
	if tuning, err := readTuning(filepath.Join(results, "tuning.txt")); err != nil || len(tuning.Rules) == 0 {
		t.Errorf("%v: %+v", err, tuning)
	}
	output, code = benchMachine(t, results, []string{"COMPARE=nccl"}, "2", "builtin", "two")
	if code != 1 || !strings.Contains(output, "\nFAILED: builtin\n") || !strings.Contains(output, "mscclgo bench: nccl: ") || !strings.Contains(output, "two                          ok") || strings.Contains(output, "\nthe built-in choice") || strings.Contains(output, "\n1K on") {
		t.Errorf("exit status %d, with a part that fails:\n%s", code, output)
	}
	for _, args := range []string{"1", "eight", "2 everything"} {
		if output, code := benchMachine(t, results, nil, strings.Fields(args)...); code != 2 || !strings.Contains(output, "bench-machine") {
			t.Errorf("%s: exit status %d\n%s", args, code, output)
		}
	}
}

// TestBenchMachineSummary prints results of eight ranks beside NCCL's and what the model predicts.
func TestBenchMachineSummary(t *testing.T) {
	results := t.TempDir()
	times := func(us float64) bench.Times {
		return bench.Times{Median: time.Duration(us * 1000), Least: time.Duration(us * 900), Most: time.Duration(us * 2000)}
	}
	for name, us := range map[string]float64{"tune": 180, "builtin": 200, "two": 100} {
		var text bytes.Buffer
		for _, bytes := range []uint64{1 << 10, 64 << 20} {
			r := bench.Result{
				Stage: "run", Collective: "reduce-scatter", Ranks: 8, Bytes: bytes, Algorithm: "pushed", Time: times(us),
				Others: []bench.Other{{Name: "unprepared", Time: times(us * 1.1)}, {Name: "nccl", Time: times(250)}, {Name: "nccl-sym", Time: times(300), Wrong: 3}},
			}
			testerr.Check(t, json.NewEncoder(&text).Encode(r))
		}
		testerr.Check(t, os.WriteFile(filepath.Join(results, name+".jsonl"), text.Bytes(), 0o666))
	}
	output, code := benchMachine(t, results, nil, "8", "summary")
	for _, want := range []string{
		"reduce-scatter 64M pushed 180.00 166.20 1.08 250.00 0.72 300.00 0.60 198.00 1.10 0",
		"reduce-scatter 64M pushed 200.00 166.20 1.20 250.00 0.80 300.00 0.67 220.00 1.10 0",
		"reduce-scatter 200.00, 100.00: 2.00",
	} {
		if code != 0 || !strings.Contains(strings.Join(strings.Fields(output), " "), want) {
			t.Errorf("exit status %d, and it lacks %q:\n%s", code, want, output)
		}
	}
}
