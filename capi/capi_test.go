package capi

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/signature"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/launcher"
)

// folder holds the library and what the tests compile.
var folder string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "mscclgo-capi-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		return m.Run()
	}())
}

// build puts the library and its header into the folder: those beside this program, which
// scripts/build-tests built for machines without Go, or new ones.
var build = sync.OnceValues(func() ([]byte, error) {
	if program, err := os.Executable(); err == nil {
		built := filepath.Dir(program)
		if _, err := os.Stat(filepath.Join(built, "libmscclgo.so")); err == nil {
			return exec.Command("sh", "-c", `cp -P "$1"/libmscclgo.so* "$1/mscclgo.h" "$2"`, "sh", built, folder).CombinedOutput()
		}
	}
	// Packages without C are compiled as for the wheel, once for both.
	return exec.Command("../scripts/lib", folder, "-buildvcs=false", "-trimpath").CombinedOutput()
})

// library builds the library.
func library(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("../scripts/lib"); err != nil {
		t.Skip("the sources are not here:", err)
	}
	if out, err := build(); err != nil {
		t.Fatalf("scripts/lib: %v\n%s", err, out)
	}
}

// compile compiles a program and links it, with the library unless told otherwise.
func compile(t *testing.T, compiler, standard, source string, link ...string) string {
	t.Helper()
	library(t)
	if link == nil {
		link = withLibrary()
	}
	return compileAs(t, strings.ReplaceAll(filepath.Base(source), ".", "-"), compiler, standard, source, link...)
}

// withLibrary are the arguments that link a program with the library.
func withLibrary() []string {
	return []string{"-L" + folder, "-lmscclgo", "-Wl,-rpath," + folder}
}

// compileAs is compile for a program of a name of its own.
func compileAs(t *testing.T, name, compiler, standard, source string, link ...string) string {
	t.Helper()
	program := filepath.Join(folder, name)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	args := append([]string{"-Wall", "-Wextra", "-Werror", "-O1", "-std=" + standard, "-I" + folder, source, "-o", program, "-ldl", "-pthread"}, link...)
	out, err := exec.Command(compiler, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", source, err, out)
	}
	return program
}

var declared = regexp.MustCompile(`(?m)^MSCCLGO_API .*?[ *](mscclgo_\w+)\(`)

func TestExports(t *testing.T) {
	library(t)
	header := testerr.Must(os.ReadFile("mscclgo.h"))(t)
	want := map[string]bool{"mscclgo_command": true} // of cmd/mscclgo
	for _, m := range declared.FindAllSubmatch(header, -1) {
		want[string(m[1])] = true
	}
	symbols := func(which string) []string {
		out, err := exec.Command("nm", "-D", which, "-j", filepath.Join(folder, "libmscclgo.so")).CombinedOutput()
		if err != nil {
			t.Fatalf("nm: %v\n%s", err, out)
		}
		all := strings.Fields(string(out))
		slices.Sort(all)
		return all
	}
	testcmp.Equal(t, "exported symbols", symbols("--defined-only"), slices.Sorted(maps.Keys(want)))
	// With RTLD_NOW all others must be in libraries that the library needs.
	for _, name := range symbols("--undefined-only") {
		switch {
		case strings.Contains(name, "@GLIBC_"):
		case slices.Contains([]string{"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__", "__cxa_finalize"}, name):
		default:
			t.Errorf("%s is undefined", name)
		}
	}
}

func TestHeader(t *testing.T) {
	library(t)
	// The header alone, in the oldest standards and the newest.
	for _, c := range [][]string{{"gcc", "-std=c99", "-xc"}, {"gcc", "-std=c2x", "-xc"}, {"g++", "-std=c++11", "-xc++"}, {"g++", "-std=c++20", "-xc++"}} {
		args := append(c[1:], "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "mscclgo.h")
		if c[0] == "gcc" {
			args = append(args, "-pedantic")
		}
		if out, err := exec.Command(c[0], args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", c, err, out)
		}
	}
}

func TestVersion(t *testing.T) {
	out := string(check(t, 0, nil, "version"))
	testcmp.Equal(t, "the library's version", strings.TrimSpace(out), strings.TrimSuffix(mscclgo.Version, "-dev"))
}

// check runs testdata/check.c and returns what it prints.
func check(t *testing.T, code int, env []string, args ...string) []byte {
	t.Helper()
	return run(t, code, env, compile(t, "gcc", "c11", "testdata/check.c"), args...)
}

// run runs a program, whose status must be code, and returns what it prints.
func run(t *testing.T, code int, env []string, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := status(cmd.ProcessState); got != code {
		t.Fatalf("%s %v: status %d, want %d\n%s", filepath.Base(program), args, got, code, out.Bytes())
	}
	return out.Bytes()
}

// status is the status of a process as a shell has it.
func status(p *os.ProcessState) int {
	if signal, ok := strings.CutPrefix(p.String(), "signal: "); ok {
		names := map[string]int{"segmentation fault": 11, "broken pipe": 13, "terminated": 15}
		signal = strings.TrimSuffix(signal, " (core dumped)")
		return 128 + names[signal]
	}
	return p.ExitCode()
}

func TestHandles(t *testing.T)     { check(t, 0, nil, "handles") }
func TestLaunches(t *testing.T)    { check(t, 0, nil, "launches") }
func TestCollectives(t *testing.T) { check(t, 0, nil, "collectives") }
func TestPrecompile(t *testing.T)  { check(t, 0, nil, "precompile") }
func TestPrepared(t *testing.T)    { check(t, 0, nil, "prepared") }
func TestApart(t *testing.T)       { check(t, 0, nil, "prepared-apart") }
func TestMessages(t *testing.T)    { check(t, 0, nil, "messages") }
func TestSplit(t *testing.T)       { check(t, 0, nil, "split") }
func TestDiffer(t *testing.T)      { check(t, 0, nil, "differ") }
func TestConfigured(t *testing.T)  { check(t, 0, nil, "configured") }
func TestPipes(t *testing.T)       { check(t, 0, nil, "pipes") }
func TestPorts(t *testing.T)       { check(t, 0, nil, "ports") }
func TestTriggers(t *testing.T)    { check(t, 0, nil, "triggers") }
func TestTriggerEnds(t *testing.T) { check(t, 0, nil, "waiting-triggers") }
func TestBusy(t *testing.T)        { check(t, 0, nil, "busy") }
func TestReformed(t *testing.T)    { check(t, 0, nil, "reformed") }
func TestAbandoned(t *testing.T)   { check(t, 0, nil, "abandoned") }
func TestLate(t *testing.T)        { check(t, 0, nil, "late") }
func TestEnvironment(t *testing.T) { check(t, 0, nil, "environment") }

// TestRun also compares what ranks print that the library has started.
func TestRun(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(string(check(t, 0, nil, "run"))), "\n")
	slices.Sort(lines)
	testcmp.Equal(t, "output", lines, []string{"0 of 2, id, late", "1 of 2, id, late"})
}

func TestInaccessible(t *testing.T) {
	check(t, 0, nil, "inaccessible", filepath.Join(t.TempDir(), "file"))
}

// TestUndescribed loads an image that does not tell the types of parameters, as images of others.
func TestUndescribed(t *testing.T) {
	const source = `extern "C" __global__ void k(float* to, int n) { to[0] = n; }`
	image, err := devicecode.Compile(t.Context(), devicecode.ArchEmu, "k.cu", []byte(source), devicecode.Options{})
	testerr.Check(t, err)
	plain, described, err := signature.Split(image)
	if err != nil || described == nil {
		t.Fatalf("the image describes %v, %v", described, err)
	}
	file := filepath.Join(t.TempDir(), "image")
	testerr.Check(t, os.WriteFile(file, plain, 0o600))
	check(t, 0, nil, "undescribed", file)
}

func TestBundle(t *testing.T) {
	const source = `extern "C" __global__ void k(int* to, int n) { *to = n; }`
	b := testerr.Must(devicecode.CompileBundle(t.Context(), []string{devicecode.ArchEmu}, "k.cu", []byte(source), devicecode.Options{}))(t)
	file := filepath.Join(t.TempDir(), "k.bundle")
	testerr.Check(t, os.WriteFile(file, b.Bytes(), 0o600))
	check(t, 0, nil, "bundle", file)
}

// TestOpening runs often, as what would fail is rare: memory that is freed is overwritten.
func TestOpening(t *testing.T) {
	for range 5 {
		check(t, 0, []string{"MALLOC_PERTURB_=85"}, "opening")
	}
}

func TestFork(t *testing.T) { check(t, 0, nil, "fork") }

// TestLeaks counts what is left when all is destroyed. On emulated devices LeakSanitizer also looks for memory of
// C that nothing points to then; on GPUs the driver's own would count.
func TestLeaks(t *testing.T) {
	if testdev.CUDA() {
		t.Logf("%s", check(t, 0, nil, "leaks"))
		return
	}
	library(t)
	program := compileAs(t, "check-lsan", "gcc", "c11", "testdata/check.c", append(withLibrary(), "-fsanitize=leak", "-g")...)
	t.Logf("%s", run(t, 0, nil, program, "leaks"))
	if out := run(t, 23, []string{"LSAN_OPTIONS=exitcode=23"}, program, "leak"); !bytes.Contains(out, []byte("of 4321 byte(s)")) {
		t.Errorf("the sanitizer did not find a leak: %s", out)
	}
}

// TestContext has a driver that is not real keep the current context of a thread.
func TestContext(t *testing.T) {
	library(t)
	driver := t.TempDir()
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(driver, "libcuda.so.1"), "testdata/driver.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check(t, 0, []string{"LD_LIBRARY_PATH=" + driver}, "context")
}

// TestSignals checks that signals do in a program with the library what they do without.
func TestSignals(t *testing.T) {
	for _, test := range []struct {
		how    string
		status int
		prints string
	}{
		{how: "fault", status: 128 + 11},
		{how: "pipe", status: 128 + 13},
		{how: "term", status: 128 + 15},
		{how: "early fault", status: 42, prints: "host: signal 11\n"},
		{how: "early pipe", status: 3, prints: "host: signal 13\n"},
		{how: "late fault", status: 42, prints: "host: signal 11\n"},
		{how: "late pipe", status: 3, prints: "host: signal 13\n"},
	} {
		t.Run(test.how, func(t *testing.T) {
			env := []string{"LD_LIBRARY_PATH=" + folder}
			program := compile(t, "gcc", "c11", "testdata/signals.c", "-ldl") // which loads the library itself
			got := string(run(t, test.status, env, program, test.how))
			testcmp.Equal(t, "output", got, test.prints)
		})
	}
}

// TestMPI has mpirun start a program that MPI's library is in, too.
func TestMPI(t *testing.T) {
	mpirun, err := exec.LookPath("mpirun")
	if err != nil {
		netlab.Lacks(t, "mpirun", "there is no mpirun (Debian: openmpi-bin)")
	}
	header := exec.Command("mpicc", "-E", "-x", "c", "-")
	header.Stdin = strings.NewReader("#include <mpi.h>")
	if err := header.Run(); err != nil {
		netlab.Lacks(t, "mpicc", "there is no mpicc that finds mpi.h (Debian: libopenmpi-dev): %v", err)
	}
	kind := "emu"
	if testdev.CUDA() {
		kind = "cuda"
	}
	program := compile(t, "mpicc", "c11", "testdata/mpi.c")
	out := run(t, 0, []string{"MSCCLGO_DEVICE=" + kind}, mpirun,
		"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", program)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	testcmp.Equal(t, "output", lines, []string{"rank 0 of 2: all 1000 sums are MPI's", "rank 1 of 2: all 1000 sums are MPI's"})
}

func TestLog(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testerr.Check(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	testerr.Check(t, err)
	testerr.Check(t, l.Close())
	if out := check(t, 0, nil, "logs", port); !bytes.Contains(out, []byte("refused")) {
		t.Errorf("the log is %q", out)
	}
}

// TestExampleC runs the example as the ranks of a group.
func TestExampleC(t *testing.T) {
	program := compile(t, "gcc", "c11", "examples/allreduce.c")
	kind := "emu"
	if testdev.CUDA() {
		kind = "cuda"
	}
	var out bytes.Buffer
	_, err := launcher.Run(t.Context(), launcher.Options{
		Ranks: 3, Program: program, Env: []string{"MSCCLGO_DEVICE=" + kind}, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	testcmp.Equal(t, "output", lines, []string{
		"rank 0 of 3: all 1000 sums are right", "rank 1 of 3: all 1000 sums are right", "rank 2 of 3: all 1000 sums are right",
	})

	// Without a launcher.
	got, err := exec.Command(program).CombinedOutput()
	if err == nil || !bytes.Contains(got, []byte("no launcher has set RANK")) || !bytes.Contains(got, []byte(`start the program with "mscclgo run -n 4 PROGRAM"`)) {
		t.Errorf("without a group in the environment: %v\n%s", err, got)
	}
}

func TestExampleCPlusPlus(t *testing.T) {
	cmd := exec.Command(compile(t, "g++", "c++17", "examples/threads.cc"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	testcmp.Equal(t, "output", string(out), "3 ranks: all numbers are right\n")
}
