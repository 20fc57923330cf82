package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// These tests run the whole command, in processes of its own, and do to it what
// users, machines and strangers do.

// endless are arguments for a run that is stopped in the middle.
var endless = []string{"-b", "1K", "-e", "1K", "-iters", "100000000"}

// allReduce returns the arguments of a bench of the all-reduce that launches each
// operation and takes no rounds.
func allReduce(args ...string) []string {
	args = append([]string{"bench", "-d", "f32", "-b", "1K", "-e", "1M", "-graph=false", "-rounds", "1", "-replays", "1", "-w", "2", "-iters", "10"}, args...)
	return append(args, "all-reduce")
}

// TestRankKilled kills a rank in the middle of a run that no launcher watches.
func TestRankKilled(t *testing.T) {
	for _, algo := range []string{"oneShotLL16", "oneShotLL128", "direct", "ring"} {
		t.Run(algo, func(t *testing.T) {
			s, id := testproc.New(t), testproc.NewRendezvous(t).ID()
			var all []*testproc.Process
			for rank := range 3 {
				all = append(all, s.Start(testproc.RankEnv(id, rank, 3), allReduce(append([]string{"-algo", algo}, endless...)...)...))
			}
			all[0].Says("# all-reduce")
			time.Sleep(300 * time.Millisecond)
			testerr.Check(t, all[2].Cmd.Process.Kill())
			start := time.Now()
			all[2].End(-1) // by a signal
			all[0].End(1, "rank 2")
			all[1].End(1, "rank 2")
			t.Logf("the others ended %v later", time.Since(start))
		})
	}
}

// TestLaunchedRankKilled kills a rank of a program that started its own. The program
// ends with the code of the rank that the launcher saw end first. This may be the
// rank that complains.
func TestLaunchedRankKilled(t *testing.T) {
	s := testproc.New(t)
	p := s.Start(nil, allReduce(append([]string{"-n", "2"}, endless...)...)...)
	p.Says("# all-reduce")
	killed := false
	for pid, environment := range s.Processes() {
		if strings.Contains(environment, "\x00RANK=1\x00") {
			testerr.Check(t, syscall.Kill(pid, syscall.SIGKILL))
			killed = true
		}
	}
	if !killed {
		t.Fatal("found no rank 1")
	}
	p.End(testproc.AnyFailure, "rank 1", "SIGKILL")
}

// TestInterrupted stops a run as a user does.
func TestInterrupted(t *testing.T) {
	s := testproc.New(t)
	p := s.Start(nil, allReduce(append([]string{"-n", "2"}, endless...)...)...)
	p.Says("# all-reduce")
	testerr.Check(t, p.Cmd.Process.Signal(os.Interrupt))
	p.End(128 + int(syscall.SIGINT))
}

func TestBadDevice(t *testing.T) {
	for name, part := range map[string]string{"emu:999": "emu:999", "tpu": "tpu", "emu:one": "one", "cuda:999": "CUDA"} {
		t.Run(name, func(t *testing.T) {
			s := testproc.New(t)
			s.Kind = ""
			s.Start(nil, allReduce("-n", "1", "-device", name)...).End(1, part)
		})
	}
}

func TestNoDriver(t *testing.T) {
	if d, err := gpu.Open("cuda:0"); err == nil {
		d.Close()
		t.Skip("there is a driver and a GPU")
	}
	for _, name := range []string{"cuda", "cuda:0"} {
		s := testproc.New(t)
		s.Kind = name
		s.Start(nil, allReduce("-n", "1")...).End(1, "unsupported", "cuda")
	}
}

func TestOutOfMemory(t *testing.T) {
	if testdev.CUDA() {
		testproc.New(t).Start(nil, allReduce("-n", "1", "-e", "100T")...).End(1, "out of memory")
		return
	}
	testproc.New(t).Start([]string{"MSCCLGO_EMU_MEMORY=10000000"}, allReduce("-n", "2", "-scratch", "1M", "-e", "100000000")...).End(1, "out of device memory")
}

func TestTwoRanksOfOneNumber(t *testing.T) {
	s, id := testproc.New(t), testproc.NewRendezvous(t).ID()
	all := []*testproc.Process{s.Start(testproc.RankEnv(id, 0, 3), allReduce()...), s.Start(testproc.RankEnv(id, 1, 3), allReduce()...), s.Start(testproc.RankEnv(id, 1, 3), allReduce()...)}
	for _, p := range all {
		p.End(1, "invalid use", "rank 1")
	}
}

func TestWorldSizesDiffer(t *testing.T) {
	s, id := testproc.New(t), testproc.NewRendezvous(t).ID()
	all := []*testproc.Process{s.Start(testproc.RankEnv(id, 0, 3), allReduce()...), s.Start(testproc.RankEnv(id, 1, 3), allReduce()...), s.Start(testproc.RankEnv(id, 2, 4), allReduce()...)}
	for _, p := range all {
		p.End(1, "invalid use", "3", "4")
	}
}

func TestMissingRanks(t *testing.T) {
	s, id := testproc.New(t), testproc.NewRendezvous(t).ID()
	all := []*testproc.Process{s.Start(testproc.RankEnv(id, 0, 4), allReduce("-timeout", "2s")...), s.Start(testproc.RankEnv(id, 2, 4), allReduce("-timeout", "2s")...)}
	for _, p := range all {
		p.End(1, "timeout", "1", "3")
	}
}

func TestMalformedID(t *testing.T) {
	s := testproc.New(t)
	for _, text := range []string{"nonsense", testproc.NewRendezvous(t).ID().String()[1:], testproc.NewRendezvous(t).ID().String() + "0"} {
		env := append(testproc.RankEnv(testproc.NewRendezvous(t).ID(), 0, 1), bootstrap.EnvID+"="+text)
		s.Start(env, allReduce()...).End(1, "invalid use", bootstrap.EnvID)
	}
}

// TestStaleID uses the id of a group whose rendezvous is gone.
func TestStaleID(t *testing.T) {
	r := testproc.NewRendezvous(t)
	id := r.ID()
	r.Close()
	testproc.New(t).Start(testproc.RankEnv(id, 1, 2), allReduce("-timeout", "2s")...).End(1, "timeout", id.Addr())
}

// TestStranger sends noise to every port that the ranks listen on, while a run
// goes on.
func TestStranger(t *testing.T) {
	s, r := testproc.New(t), testproc.NewRendezvous(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { noise(stop, r.ID().Addr()) })
	var all []*testproc.Process
	for rank := range 2 {
		all = append(all, s.Start(testproc.RankEnv(r.ID(), rank, 2), allReduce("-e", "16K", "-iters", "200")...))
	}
	all[0].Says("# all-reduce")
	ports := 0
	for _, p := range all {
		for _, addr := range listening(p.Cmd.Process.Pid) {
			ports++
			wg.Go(func() { noise(stop, addr) })
		}
	}
	for _, p := range all {
		p.End(0)
	}
	close(stop)
	wg.Wait()
	if ports == 0 {
		t.Error("found no port on which a rank listens")
	}
	if rows := strings.Count(all[0].Stdout.String(), " f32 "); rows != 3 {
		t.Errorf("%d rows:\n%s", rows, &all[0].Stdout)
	}
}

// noise connects to an address again and again and sends it what means nothing.
func noise(stop <-chan struct{}, addr string) {
	for n := 1; ; n = n*7%100_003 + 1 {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			continue
		}
		c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		c.Write(bytes.Repeat([]byte{byte(n), 0xff, 0, 'G', 'E', 'T'}, n/6+1))
		io.Copy(io.Discard, c)
		c.Close()
	}
}

// listening returns the TCP addresses of this machine on which a process listens.
func listening(pid int) []string {
	sockets := map[string]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if name, err := os.Readlink(file); err == nil && strings.HasPrefix(name, "socket:[") {
			sockets[strings.Trim(name, "socket:[]")] = true
		}
	}
	var found []string
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st ... inode is the tenth; see proc(5).
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[3] != "0A" || !sockets[fields[9]] {
				continue
			}
			_, port, _ := strings.Cut(fields[1], ":")
			if n, err := strconv.ParseUint(port, 16, 16); err == nil {
				found = append(found, fmt.Sprintf("127.0.0.1:%d", n))
			}
		}
	}
	return found
}
