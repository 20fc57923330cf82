package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/launcher"
)

// TestKilledWithChild ends rank 0 in each way while a child that it has forked lives. The other rank is told at once,
// with signs of life and without, and also where the child keeps all descriptors. Without a launcher rank 0 has the
// rendezvous, and the next group meets at its port.
func TestKilledWithChild(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the ranks have emulated devices")
	}
	program := compile(t, "gcc", "c11", "testdata/killed.c")
	for _, child := range []string{"fork", "keeps all"} {
		for _, heartbeat := range []string{"60000", "-1"} {
			for _, start := range []func(*testing.T, ...string) string{launched, bare(freePort(t))} {
				t.Run("", func(t *testing.T) {
					t.Parallel() // the groups mostly wait
					for _, end := range []string{"kill", "term", "exit"} {
						if child != "fork" && end != "kill" { // the child has the listener too
							break
						}
						out := start(t, program, child, end, heartbeat)
						told := regexp.MustCompile(`(?s)^child (\d+)\n.*remote failure: .*rank 0 `).FindStringSubmatch(out)
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

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// launched runs a program as two ranks under a launcher, and returns what they print.
func launched(t *testing.T, program ...string) string {
	var out bytes.Buffer
	launcher.Run(t.Context(), launcher.Options{Ranks: 2, Program: program[0], Args: program[1:], Grace: 2 * time.Minute, Stdout: &out, Stderr: &out})
	return out.String()
}

// bare returns a function that does so without a launcher.
func bare(port string) func(*testing.T, ...string) string {
	return func(t *testing.T, program ...string) string {
		file, err := os.Create(filepath.Join(t.TempDir(), "out")) // no pipe, which the child would keep open
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var ranks [2]*exec.Cmd
		for rank := range ranks {
			ranks[rank] = exec.CommandContext(t.Context(), program[0], program[1:]...)
			ranks[rank].Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
			ranks[rank].Stdout, ranks[rank].Stderr = file, file
			if err := ranks[rank].Start(); err != nil {
				t.Fatal(err)
			}
			defer ranks[rank].Wait()
		}
		ranks[1].Wait()
		out, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
}
