package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// These tests run the program on several hosts, which have only the network to
// reach each other; make test-net runs them alone.

// wholeRun is the time within which a group on several hosts does its work, also on an
// emulated machine and beside other work.
const wholeRun = 5 * time.Minute

func TestMain(m *testing.M) { testproc.Main(m, main) }

// endless are arguments for a run that is stopped in the middle.
var endless = []string{"-min", "1024", "-max", "1024", "-iters", "100000000"}

// testProgram returns this test's program, which is the sample under testproc.MainEnv.
func testProgram(t testing.TB) string {
	t.Helper()
	return testerr.Must(os.Executable())(t)
}

// finish waits for all ranks and checks that rank 0 printed as many sizes, all by an
// algorithm.
func finish(t *testing.T, all []*testproc.Process, algo string, sizes int) {
	t.Helper()
	deadline := time.After(wholeRun)
	for rank, p := range all {
		select {
		case <-p.Ended:
			if code := p.Cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("rank %d ended with code %d:\n%s", rank, code, &p.Stderr)
			}
		case <-deadline:
			t.Fatalf("rank %d has not ended after %v:\n%s%s", rank, wholeRun, &p.Stdout, &p.Stderr)
		}
	}
	checkTable(t, all[0].Stdout.String(), algo, sizes)
}

// checkTable checks the number of rows that a table has of an algorithm, and that they
// have no wrong elements.
func checkTable(t *testing.T, out, algo string, sizes int) {
	t.Helper()
	rows := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "#") || !strings.Contains(line, " "+algo+" ") {
			continue
		}
		rows++
		if fields := strings.Fields(line); fields[len(fields)-1] != "0" {
			t.Errorf("wrong elements: %s", line)
		}
	}
	if rows != sizes {
		t.Errorf("%d rows, want %d:\n%s", rows, sizes, out)
	}
}

func skipOnGPU(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
}

func TestHosts(t *testing.T) {
	skipOnGPU(t)
	for _, c := range []struct {
		name    string
		options netlab.Options
		perHost []int
		args    []string
	}{
		{"2x1", netlab.Options{}, []int{1, 1}, []string{"-op", "max", "-type", "i32"}},
		{"2x3", netlab.Options{}, []int{3, 3}, []string{"-type", "f16"}},
		{"1+3", netlab.Options{}, []int{1, 3}, []string{"-inplace"}},
		{"3x1", netlab.Options{}, []int{1, 1, 1}, []string{"-type", "bf16"}},
		{"3x3", netlab.Options{}, []int{3, 3, 3}, nil},
		{"2x3 by hier", netlab.Options{}, []int{3, 3}, []string{"-algo", "hier", "-type", "f16", "-inplace"}},
		{"3x1 by hier", netlab.Options{}, []int{1, 1, 1}, []string{"-algo", "hier"}},
		{"3x1 by ring", netlab.Options{}, []int{1, 1, 1}, []string{"-algo", "ring", "-op", "max"}},
		{"MTU 1280", netlab.Options{MTU: 1280}, []int{2, 2}, nil},
		{"IPv6", netlab.Options{IPv6: true}, []int{2, 1, 2}, []string{"-op", "min"}},
		{"IPv6, MTU 1280", netlab.Options{IPv6: true, MTU: 1280}, []int{1, 2}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, lab := testproc.New(t), netlab.New(t, len(c.perHost), c.options)
			args := append([]string{"-min", "4", "-max", "1048576", "-warmup", "1", "-iters", "2"}, c.args...)
			algo := "auto"
			if i := slices.Index(c.args, "-algo"); i >= 0 {
				algo = c.args[i+1]
			}
			finish(t, lab.Start(s, c.perHost, args...), algo, 10) // 4, 16, ... 1048576
		})
	}
}

// TestHostsOnUnlikelyInterfaces has hosts whose only interface has the name of a
// container bridge, which is not chosen by itself. The addresses of the bootstrap are
// used, and never the loopback interface's.
func TestHostsOnUnlikelyInterfaces(t *testing.T) {
	skipOnGPU(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	for _, h := range lab.Hosts {
		for _, change := range [][]string{{"eth0", "down"}, {"eth0", "name", "docker0"}, {"docker0", "up"}} {
			if out, err := h.Command(t.Context(), "ip", append([]string{"link", "set"}, change...)...).CombinedOutput(); err != nil {
				t.Fatalf("ip link set %v: %v: %s", change, err, out)
			}
		}
	}
	finish(t, lab.Start(s, []int{1, 2}, "-min", "4", "-max", "1024", "-warmup", "1", "-iters", "2"), "auto", 5)
}

// TestHostsOnABadNetwork needs a kernel with netem, which the virtual machine of
// make test-netem has.
func TestHostsOnABadNetwork(t *testing.T) {
	skipOnGPU(t)
	for _, c := range []struct {
		netem   string
		options netlab.Options
		perHost []int
	}{
		{"delay 5ms reorder 25% 50% loss 1%", netlab.Options{IPv6: true, MTU: 1280}, []int{1, 1}},
		{"delay 3ms 2ms loss 0.5% reorder 10% duplicate 1% corrupt 0.1%", netlab.Options{}, []int{1, 1, 1}},
	} {
		t.Run(c.netem, func(t *testing.T) {
			s, lab := testproc.New(t), netlab.New(t, len(c.perHost), c.options)
			for _, h := range lab.Hosts {
				h.Impair(strings.Fields(c.netem)...)
			}
			finish(t, lab.Start(s, c.perHost, "-min", "16384", "-max", "65536", "-warmup", "0", "-iters", "1"), "auto", 2)
		})
	}
}

// noticed is the time within which a group that lost a host must fail: somewhat more
// than the default timeout of waits.
const noticed = 60 * time.Second

// allFail waits until all ranks have ended and checks that the ranks in missed did so
// with an error that names the rank they missed.
func allFail(t *testing.T, all []*testproc.Process, missed map[int]int) {
	t.Helper()
	start, deadline := time.Now(), time.After(noticed)
	for rank, p := range all {
		select {
		case <-p.Ended:
		case <-deadline:
			t.Fatalf("rank %d has not ended after %v:\n%s%s", rank, noticed, &p.Stdout, &p.Stderr)
		}
	}
	t.Logf("all ended %v later", time.Since(start))
	for rank, other := range missed {
		p := all[rank]
		named := regexp.MustCompile(fmt.Sprintf(`(rank|peer) %d\b`, other))
		if code := p.Cmd.ProcessState.ExitCode(); code != 1 || !named.MatchString(p.Stderr.String()) {
			t.Errorf("rank %d ended with code %d, and maybe without naming rank %d:\n%s", rank, code, other, &p.Stderr)
		}
	}
}

// begun waits until the ranks are in the middle of their work.
func begun(all []*testproc.Process) {
	all[0].Says("# all-reduce")
	time.Sleep(300 * time.Millisecond)
}

// TestCablePulled takes a host away for longer than anybody waits.
func TestCablePulled(t *testing.T) {
	skipOnGPU(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	all := lab.Start(s, []int{1, 1}, endless...)
	begun(all)
	lab.Hosts[1].Unplug()
	allFail(t, all, map[int]int{0: 1, 1: 0})
}

// TestCablePulledShortly takes a host away and brings it back in time.
func TestCablePulledShortly(t *testing.T) {
	skipOnGPU(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	all := lab.Start(s, []int{2, 1}, "-min", "1024", "-max", "1024", "-iters", "1000")
	begun(all)
	lab.Hosts[1].Unplug()
	time.Sleep(time.Second)
	lab.Hosts[1].Plug()
	finish(t, all, "auto", 1)
}

// TestRankOnOtherHostKilled kills a rank in the middle of a run.
func TestRankOnOtherHostKilled(t *testing.T) {
	skipOnGPU(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	all := lab.Start(s, []int{2, 1}, endless...)
	begun(all)
	testerr.Check(t, all[2].Cmd.Process.Kill())
	allFail(t, all, map[int]int{0: 2, 1: 2})
}
