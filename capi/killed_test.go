package capi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/launcher"
)

// TestKilledWithChild ends a rank in each way and place while a child that it has forked lives. The other rank is told
// at once, with signs of life and without, and once the group has formed also where the child keeps all descriptors.
// Without a launcher rank 0 has the rendezvous, and the next group meets at its port.
func TestKilledWithChild(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the ranks have emulated devices")
	}
	program := compile(t, "gcc", "c11", "testdata/killed.c")
	fork, keepsAll, both := []string{"fork"}, []string{"keeps all"}, []string{"fork", "keeps all"}
	kill, each := []string{"kill"}, []string{"kill", "term", "exit"}
	off, onAndOff := []string{"-1"}, []string{"60000", "-1"}
	for _, c := range []struct {
		where                      string
		start                      func(t *testing.T, port string, program ...string) string
		children, ends, heartbeats []string
		told                       string
	}{
		{"barrier", launched, fork, each, onAndOff, "rank 0 "},
		{"barrier", bare, fork, each, onAndOff, "rank 0 "},
		{"barrier", launched, keepsAll, kill, onAndOff, "rank 0 "},
		{"barrier", bare, keepsAll, kill, onAndOff, "rank 0 "},
		{"collective", launched, both, kill, off, "rank 0 "},
		{"collective", bare, both, kill, off, "rank 0 "},
		{"elastic", elastic, both, kill, off, "rank 0 .*\nwent on as 1\n"},
		{"connecting", bare, fork, kill, off, "rank 1, at .* was lost before all ranks had come"},
	} {
		for _, child := range c.children {
			for _, heartbeat := range c.heartbeats {
				t.Run(c.where, func(t *testing.T) {
					t.Parallel() // the groups mostly wait
					port := freePort()
					for _, end := range c.ends {
						out := c.start(t, port, program, c.where, child, end, heartbeat)
						told := regexp.MustCompile(`(?s)^child (\d+)\n.*remote failure: .*` + c.told).FindStringSubmatch(out)
						if told == nil {
							t.Fatalf("child %s, end %s, time-out %s: the ranks say %q", child, end, heartbeat, out)
						}
						pid, _ := strconv.Atoi(told[1])
						t.Cleanup(func() {
							if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
								t.Errorf("child %s, end %s, time-out %s: the child did not live: %v", child, end, heartbeat, err)
							}
						})
					}
				})
			}
		}
	}
}

// freePort returns a port at which a server can listen, as can the rendezvous that such a MASTER_PORT stands for, two
// ports on. The kernel gives neither to others, as it would ports above 32767.
func freePort() string {
	for {
		port := 10000 + rand.IntN(20000)
		free := true
		for _, p := range []int{port, port + 2} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				free = false
				continue
			}
			l.Close()
		}
		if free {
			return strconv.Itoa(port)
		}
	}
}

// launched runs a program as two ranks under a launcher, and returns what they print.
func launched(t *testing.T, _ string, program ...string) string {
	var out bytes.Buffer
	launcher.Run(t.Context(), launcher.Options{Ranks: 2, Program: program[0], Args: program[1:], Grace: 2 * time.Minute, Stdout: &out, Stderr: &out})
	return out.String()
}

// bare is launched without a launcher, with a port of the rendezvous. Where the ranks connect they wait for a third.
func bare(t *testing.T, port string, program ...string) string {
	file, err := os.Create(filepath.Join(t.TempDir(), "out")) // no pipe, which the child would keep open
	testerr.Check(t, err)
	defer file.Close()
	var ranks [2]*exec.Cmd
	size := len(ranks)
	if program[1] == "connecting" {
		size++
	}
	for rank := range ranks {
		ranks[rank] = exec.CommandContext(t.Context(), program[0], program[1:]...)
		ranks[rank].Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		ranks[rank].Stdout, ranks[rank].Stderr = file, file
		testerr.Check(t, ranks[rank].Start())
	}
	for _, rank := range ranks {
		rank.Wait()
	}
	out := testerr.Must(os.ReadFile(file.Name()))(t)
	return string(out)
}

// elastic is bare for processes that meet at an elastic server.
func elastic(t *testing.T, port string, program ...string) string {
	server := testerr.Must(bootstrap.NewElastic("127.0.0.1:"+port, bootstrap.ElasticOptions{Max: 2, Settle: 4 * time.Second}))(t)
	defer server.Close()
	return bare(t, port, append(program, server.ID().String())...)
}
