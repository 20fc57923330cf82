package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// These tests have Open MPI's mpirun start the ranks, as people with a cluster do.

// mpirunArgs are arguments that mpirun needs to start ranks here: as root, more
// than there are cores, and not bound to one.
var mpirunArgs = []string{"--allow-run-as-root", "--oversubscribe", "--bind-to", "none"}

func findMpirun(t *testing.T) string {
	t.Helper()
	skipOnGPU(t)
	path, err := exec.LookPath("mpirun")
	if err != nil {
		netlab.Lacks(t, "mpirun", "there is no mpirun (Debian: openmpi-bin)")
	}
	return path
}

func TestMpirun(t *testing.T) {
	s, program := testproc.New(t), testProgram(t)
	cmd := exec.CommandContext(t.Context(), findMpirun(t), append(mpirunArgs, "-n", "3",
		program, "-algo", "hier", "-min", "4", "-max", "65536", "-iters", "2")...)
	finish(t, []*testproc.Process{s.Run(cmd, nil)}, "hier", 8)
}

// TestMpirunOnHosts has ip in the place of ssh to start the ranks on the hosts.
func TestMpirunOnHosts(t *testing.T) {
	mpirun, program := findMpirun(t), testProgram(t)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	// mpirun calls it with a host and what a shell there is to run.
	var agent strings.Builder
	agent.WriteString("#!/bin/sh\nhost=$1\nshift\ncase $host in\n")
	for _, h := range lab.Hosts {
		fmt.Fprintf(&agent, "%s) exec %s sh -c \"$*\" ;;\n", h.Address, strings.Join(h.Command(context.Background(), "unshare", "--uts").Args, " "))
	}
	agent.WriteString("esac\nexit 1\n")
	file := filepath.Join(t.TempDir(), "agent")
	testerr.Check(t, os.WriteFile(file, []byte(agent.String()), 0o700))
	cmd := lab.Hosts[0].Command(t.Context(), mpirun, append(mpirunArgs, "-n", "4",
		"--host", lab.Hosts[0].Address+":2,"+lab.Hosts[1].Address+":2", "--mca", "plm_rsh_agent", file,
		"-x", testproc.MainEnv, "-x", "MASTER_ADDR="+lab.Hosts[0].Address, "-x", "MSCCLGO_SECRET=of the test",
		program, "-min", "4", "-max", "65536", "-iters", "2")...)
	finish(t, []*testproc.Process{s.Run(cmd, lab.Env())}, "auto", 8)
}
