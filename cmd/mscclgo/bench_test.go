package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

func TestMain(m *testing.M) {
	if os.Getenv(raceVariable) != "" {
		os.Exit(runRaceRank())
	}
	testproc.Main(m, main)
}

// mscclgo runs the command in a process of its own.
func mscclgo(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	return mscclgoOn(t, kind, args...)
}

// mscclgoOn is mscclgo with the variable MSCCLGO_DEVICE as given.
func mscclgoOn(t *testing.T, kind string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	program := testerr.Must(os.Executable())(t)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), testproc.MainEnv+"=1", "MSCCLGO_DEVICE="+kind)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// small are flags for a quick run.
var small = []string{"-n", "2", "-d", "f32", "-b", "1K", "-e", "4K", "-iters", "1", "-replays", "1", "-rounds", "1", "-w", "0"}

func TestBench(t *testing.T) {
	dir := t.TempDir()
	lines, plot := filepath.Join(dir, "results"), filepath.Join(dir, "plot.svg")
	stdout, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-json", lines, "-plot", plot, "-place", "out,in", "allreduce", "broadcast")...)
	if err != nil || stderr != "" {
		t.Fatalf("%v, standard error %q", err, stderr)
	}
	if strings.Count(stdout, "# ") != 4 || strings.Count(stdout, " f32 ") != 8 || strings.Contains(stdout, "all-gather") {
		t.Errorf("standard output:\n%s", stdout)
	}
	text := testerr.Must(os.ReadFile(lines))(t)
	count := 0
	for line := range strings.Lines(string(text)) {
		var r struct {
			Collective, Algorithm string
			Time                  map[string]float64
			Wrong                 *int
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Time["median"] <= 0 || r.Wrong == nil || *r.Wrong != 0 {
			t.Errorf("%v: %s", err, line)
		}
		count++
	}
	if count != 8 {
		t.Errorf("%d lines of JSON", count)
	}
	drawn := testerr.Must(os.ReadFile(plot))(t)
	var svg struct {
		Rows []struct{} `xml:"g"`
	}
	if err := xml.Unmarshal(drawn, &svg); err != nil || len(svg.Rows) != 4 {
		t.Errorf("the plot has %d rows, want 4, %v:\n%s", len(svg.Rows), err, drawn)
	}
}

// TestBenchSMs bounds the blocks of kernels, and draws a plot against the bounds.
func TestBenchSMs(t *testing.T) {
	dir := t.TempDir()
	lines, plot := filepath.Join(dir, "results"), filepath.Join(dir, "plot.svg")
	stdout, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-b", "4K", "-e", "256K", "-f", "64", "-sms", "1,3", "-algo", "bulk", "-threads", "32", "-json", lines, "-plot", plot, "allgather")...)
	if err != nil || stderr != "" {
		t.Fatalf("%v, standard error %q", err, stderr)
	}
	if strings.Count(stdout, "at most 1 blocks") != 1 || strings.Count(stdout, "at most 3 blocks") != 1 || strings.Count(stdout, " f32 ") != 4 {
		t.Errorf("standard output:\n%s", stdout)
	}
	text := testerr.Must(os.ReadFile(lines))(t)
	var grids [][2]int
	for line := range strings.Lines(string(text)) {
		var r struct{ SMs, Grid int }
		testerr.Check(t, json.Unmarshal([]byte(line), &r))
		grids = append(grids, [2]int{r.SMs, r.Grid})
	}
	if diff := cmp.Diff([][2]int{{1, 1}, {1, 1}, {3, 1}, {3, 3}}, grids); diff != "" {
		t.Errorf("bounds and blocks (-want +got):\n%s", diff)
	}
	drawn, err := os.ReadFile(plot)
	if err != nil || strings.Count(string(drawn), "blocks, at most") != 4 || !strings.Contains(string(drawn), ", 256K") {
		t.Errorf("%v, the plot:\n%s", err, drawn)
	}
}

// TestBenchTune measures a tuning and uses it, in the same run and in another.
func TestBenchTune(t *testing.T) {
	dir := t.TempDir()
	file, lines := filepath.Join(dir, "tuning"), filepath.Join(dir, "results")
	first, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-tune", file, "-budget", "1s", "-json", lines, "sendreceive")...)
	if err != nil || stderr != "" {
		t.Fatalf("%v, standard error %q", err, stderr)
	}
	tuning, err := readTuning(file)
	if err != nil || len(tuning.Rules) == 0 || tuning.Rules[0].Ranks != 2 || tuning.Rules[0].Kind != collective.SendReceive {
		t.Fatalf("%v: %+v", err, tuning)
	}
	text := testerr.Must(os.ReadFile(lines))(t)
	for _, name := range collective.SendReceive.Algorithms() {
		if !strings.Contains(string(text), `{"stage":"tune","collective":"send-receive","ranks":2,`) || !strings.Contains(string(text), `"algorithm":"`+name+`"`) {
			t.Errorf("%s was not measured:\n%s", name, text)
		}
	}
	second, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-tuning", file, "sendreceive")...)
	chosen := tuning.Rules[0].Algorithm
	if err != nil || !strings.Contains(first, " "+chosen+" ") || !strings.Contains(second, " "+chosen+" ") || strings.Count(string(text), `"stage":"run"`) != 2 {
		t.Errorf("%v, standard error %q, chosen %s:\n%s\n%s", err, stderr, chosen, first, second)
	}
}

func TestBenchPrimitives(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "results")
	stdout, stderr, err := mscclgo(t, "bench", "-n", "3", "-primitives", "-json", lines)
	if err != nil {
		t.Fatalf("%v, standard error %q", err, stderr)
	}
	text := testerr.Must(os.ReadFile(lines))(t)
	for _, name := range []string{
		"semaphore", "relaxed semaphore", "LL8", "LL16", "LL128", "put and signal", "puts", "8 pushing", "push and sync",
		"plain copy, ", "pipes, ", "pipes by ports, ", " blocks, slots of ", " blocks, zero copy",
		"ring of pipes, 2 blocks, slots of ", "ring of pipes, 1+1 blocks, slots of ",
	} {
		if !strings.Contains(stdout, name) {
			t.Errorf("no %s in:\n%s", name, stdout)
		}
	}
	for line := range strings.Lines(string(text)) {
		var p struct{ Value float64 }
		if err := json.Unmarshal([]byte(line), &p); err != nil || p.Value <= 0 {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// TestBenchCounts times an all-to-all with counts beside one without.
func TestBenchCounts(t *testing.T) {
	stdout, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-compare", "all-to-all-v", "all-to-all", "scatter")...)
	if err != nil || stderr != "" {
		t.Fatalf("%v, standard error %q", err, stderr)
	}
	timed := 0
	for line := range strings.Lines(stdout) {
		if fields := strings.Fields(line); len(fields) == 13 && fields[2] == "f32" && fields[11] != "0.00" {
			timed++
		}
	}
	if n := strings.Count(stdout, "all-to-all-v"); n != 1 || timed != 2 {
		t.Errorf("%d columns, %d times:\n%s", n, timed, stdout)
	}
}

func TestBenchSoak(t *testing.T) {
	stdout, stderr, err := mscclgo(t, "bench", "-n", "2", "-soak", "1ns", "-e", "4K", "-scratch", "1M")
	if err != nil || !strings.Contains(stdout, "100 calls, no wrong element") {
		t.Errorf("%v, standard error %q, standard output %q", err, stderr, stdout)
	}
}

// TestBenchTogether has ranks in one process, two of them on one device.
func TestBenchTogether(t *testing.T) {
	devices := strings.Join([]string{testdev.Name(t, 0), testdev.Name(t, 0), testdev.Name(t, 1)}, ",")
	args := append(append([]string{"bench"}, small[2:]...), "-device", devices, "-algo", "direct", "broadcast")
	stdout, stderr, err := mscclgo(t, args...)
	if err != nil || stderr != "" || !strings.Contains(stdout, "broadcast, 3 ranks") || strings.Count(stdout, " direct ") != 2 {
		t.Errorf("%v, standard error %q, standard output:\n%s", err, stderr, stdout)
	}
	// All ranks find what is wrong.
	_, stderr, err = mscclgo(t, append(args[:len(args)-3], "-algo", "tree", "broadcast")...)
	if err == nil || !strings.Contains(stderr, `"tree" is none of`) {
		t.Errorf("%v, standard error %q", err, stderr)
	}
	_, stderr, err = mscclgo(t, "bench", "-device", devices+",no:0")
	if err == nil || !strings.Contains(stderr, "no:0") {
		t.Errorf("%v, standard error %q", err, stderr)
	}
	// Without mapped memory nothing can be direct.
	t.Setenv("MSCCLGO_TRANSPORTS", "ethernet")
	_, stderr, err = mscclgo(t, args...)
	if err == nil || !strings.Contains(stderr, "direct") {
		t.Errorf("%v, standard error %q", err, stderr)
	}
}

func TestBenchUsage(t *testing.T) {
	for _, c := range []struct{ args, part string }{
		{"-b 0 allreduce", `"0" is not a size`},
		{"-b 4K -e 1K", "not below the first"},
		{"-f 1", "factor"},
		{"-n -1", "-n"},
		{"-n 3 -device emu:0,emu:0", "-device"},
		{"all", `"all" is none of all-reduce`},
		{"-tuning none/tuning.txt", "-tuning: open none/tuning.txt: no such file"},
		{"-tuning bench.go", "-tuning bench.go: collective: read a tuning: invalid use: line 1: "},
		{"-plot plot.png", ".svg"},
		{"-plot plot", ".svg"},
		{"-algo tree allreduce", `"tree" is none of`},
		{"-d f8 allreduce", `"f8" is none of`},
		{"-o mean allreduce", `"mean" is none of`},
		{"-compare mpi allreduce", `"mpi"`},
		{"-place beside", `"beside"`},
		{"-n 2 -r 2 broadcast", "the root is rank 2"},
		{"-device emu:0,emu:0 -r 2 broadcast", "the root is rank 2"},
		{"-r -1 broadcast", "the root is rank -1"},
		{"-iters 0", "at least one operation"},
		{"-w -1", "-1 operations before"},
		{"-blocks -1", "-1 blocks"},
		{"-sms 4,0", "at most 0 multiprocessors"},
		{"-sms 4,many", `"many"`},
		{"-sms 4 -soak 1s", "-sms"},
		{"-sms 4 -primitives", "-sms"},
		{"-sms 4,8 -tune file", "-sms"},
		{"-offset 18446744073709551615", "offset"},
		{"-tune tuning.txt -budget -1s", "a budget of -1s"},
		{"-budget 1s", "-budget is for -tune"},
		{"-timeout 0s", "-timeout"},
		{"-soak -1s", "-soak"},
		{"-soak 1s -primitives", "exclude"},
		{"-soak 1s -json lines", "-json"},
		{"-primitives -plot plot.svg", "-plot"},
		{"-primitives -b 1K", "-b has no effect with -primitives"},
		{"-primitives allreduce", "no collectives, such as allreduce"},
		{"-soak 1s -d f32", "-d has no effect with -soak"},
		{"-soak 1s -c=false", "-c has no effect with -soak"},
		{"-nccl libnccl.so.2", "-nccl is for"},
		{"-nccl libnccl.so.2 -compare sends", "-nccl is for"},
	} {
		code, stdout, stderr := try(append([]string{"bench"}, strings.Fields(c.args)...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.part) || !strings.Contains(stderr, "mscclgo help bench") {
			t.Errorf("%s: code %d, standard output %q, standard error %q", c.args, code, stdout, stderr)
		}
	}
}

// TestBenchUsageInGroup has a launcher that has started fewer ranks than -n says.
func TestBenchUsageInGroup(t *testing.T) {
	underSrun(t)
	code, stdout, stderr := try("bench", "-n", "2", "-timeout", "10s", "-e", "1K", "allreduce")
	if code != exitUsage || stdout != "" || !strings.Contains(stderr, "a group of 1, which srun has started") || !strings.Contains(stderr, `"unset SLURM_PROCID"`) {
		t.Errorf("code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
	if stdout, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-n", "1", "-e", "1K", "allreduce")...); err != nil {
		t.Errorf("as many as -n says: %v\n%s%s", err, stdout, stderr)
	}
}

// TestBenchFiles refuses files that cannot be written before anything runs, and
// leaves none behind.
func TestBenchFiles(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "plot.svg")
	for _, name := range []string{"-json", "-plot", "-tune"} {
		bad := filepath.Join(dir, "no", "folder.svg")
		code, stdout, stderr := try("bench", "-plot", good, name, bad)
		if code != exitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, bad) {
			t.Errorf("%s: code %d, standard output %q, standard error %q", name, code, stdout, stderr)
		}
	}
	code, _, stderr := try("bench", "-plot", good, "-json", dir+"/./plot.svg")
	if code != exitUsage || !strings.Contains(stderr, "two flags") {
		t.Errorf("one file for two flags: code %d, standard error %q", code, stderr)
	}
	if _, err := os.Stat(good); !os.IsNotExist(err) {
		t.Errorf("%s is there: %v", good, err)
	}
}

// TestBenchFails has an error that only the ranks find. It leaves an older file as it is.
func TestBenchFails(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "results")
	testerr.Check(t, os.WriteFile(lines, []byte("older"), 0o666))
	_, stderr, err := mscclgo(t, append(append([]string{"bench"}, small...), "-json", lines, "-compare", "nccl", "-nccl", "/nonexistent.so", "allreduce")...)
	if err == nil || !strings.Contains(stderr, "/nonexistent.so") {
		t.Errorf("%v, standard error %q", err, stderr)
	}
	if text, err := os.ReadFile(lines); err != nil || string(text) != "older" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestSizeFlag(t *testing.T) {
	for text, want := range map[string]uint64{"1": 1, "1000": 1000, "64K": 64 << 10, "64k": 64 << 10, "3M": 3 << 20, "1G": 1 << 30} {
		var s sizeFlag
		if err := s.Set(text); err != nil || uint64(s) != want {
			t.Errorf("%q is %d, %v", text, s, err)
		}
		if back, err := bytesize.Parse(s.String()); err != nil || back != want {
			t.Errorf("%q comes back as %d, %v", s.String(), back, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "0", "1.5K", "1KB", "300T", "99999999999999999999"} {
		if err := new(sizeFlag).Set(text); err == nil {
			t.Errorf("%q is no size", text)
		}
	}
}
