package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// onHosts starts a bench on hosts of a lab, which have only the network to reach each other.
func onHosts(t *testing.T, perHost []int, args ...string) []*testproc.Process {
	t.Helper()
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
	s, lab := testproc.New(t), netlab.New(t, len(perHost), netlab.Options{})
	return lab.Start(s, perHost, append([]string{"bench", "-d", "i32", "-w", "0", "-rounds", "1", "-replays", "1", "-graph=false"}, args...)...)
}

// TestHostsBench checks every element of the collectives on two to four hosts, even and not,
// as the default tuning does them, and in each way between hosts.
func TestHostsBench(t *testing.T) {
	for root, perHost := range [][]int{{2, 1}, {1, 1, 2}, {1, 2, 1, 1}} {
		if testing.Short() && root == 1 {
			continue
		}
		t.Run(fmt.Sprint(perHost), func(t *testing.T) {
			benchOnHosts(t, perHost, 8, "-r", fmt.Sprint(root), "-compare", "all-to-all-v,sends", "all-gather", "broadcast",
				"reduce-scatter", "reduce", "gather", "scatter", "all-to-all", "send-receive")
			benchOnHosts(t, perHost, 3, "-algo", "hier,hierRing,hierTree", "all-reduce")
			benchOnHosts(t, perHost, 5, "-algo", "hier", "-r", fmt.Sprint(root), "all-gather", "broadcast", "all-to-all", "gather", "scatter")
		})
	}
}

func benchOnHosts(t *testing.T, perHost []int, want int, args ...string) {
	t.Helper()
	all := onHosts(t, perHost, append([]string{"-b", "40K", "-e", "40K", "-iters", "2"}, args...)...)
	deadline := time.After(5 * time.Minute) // of a whole run, also beside other work
	for _, p := range all {
		select {
		case <-p.Ended:
		case <-deadline:
		}
		p.End(0)
	}
	rows := 0
	for line := range strings.Lines(all[0].Stdout.String()) {
		if fields := strings.Fields(line); !strings.HasPrefix(line, "#") && slices.Contains(fields, "i32") {
			rows++
		}
	}
	if rows != want {
		t.Errorf("%d rows, want %d:\n%s", rows, want, &all[0].Stdout)
	}
}

// TestHostsTorchrun has the doctor warn ranks that torchrun starts on two hosts with an identifier,
// which other users of these can see, and with no secret besides.
func TestHostsTorchrun(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
	program := testerr.Must(os.Executable())(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	for secret, warned := range map[string]bool{"": true, "of the ranks": false} {
		var all []*testproc.Process
		for _, p := range testproc.Places(1, 1) {
			env := append(append(lab.Env(), p.Env...), "TORCHELASTIC_RUN_ID=job7", bootstrap.EnvSecret+"="+secret)
			all = append(all, s.Run(lab.Hosts[p.Host].Command(t.Context(), program, "doctor"), env))
		}
		for rank, p := range all {
			p.End(0)
			if got := strings.Contains(p.Stdout.String(), "--rdzv-id is taken for the group's secret"); got != (warned && rank == 0) {
				t.Errorf("rank %d with the secret %q: warned is %v:\n%s", rank, secret, got, &p.Stdout)
			}
		}
		if !strings.Contains(all[0].Stdout.String(), "2 ranks on 2 hosts wrote") {
			t.Errorf("the group did not meet:\n%s", &all[0].Stdout)
		}
	}
}

// TestHostsRankKilled kills a rank in the middle of calls across hosts, which all others
// report.
func TestHostsRankKilled(t *testing.T) {
	for _, kind := range []string{"reduce-scatter", "scatter"} {
		t.Run(kind, func(t *testing.T) {
			all := onHosts(t, []int{2, 1, 1}, append(slices.Clone(endless), "-c=false", kind)...)
			all[0].Says("# " + kind)
			time.Sleep(300 * time.Millisecond)
			testerr.Check(t, all[2].Cmd.Process.Kill())
			start := time.Now()
			for _, rank := range []int{0, 1, 3} {
				all[rank].End(1, "rank 2")
			}
			t.Logf("the others ended %v later", time.Since(start))
		})
	}
}
