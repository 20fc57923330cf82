package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
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
)

// These tests run the whole program, in processes of its own, and do to it what
// users, machines and strangers do.

const (
	mainEnv = "MSCCLGO_TEST_MAIN" // the test's program is the sample
	runEnv  = "MSCCLGO_TEST_RUN"  // marks the processes of one test
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(memoryEnv) != "":
		os.Exit(memoryOfRank())
	case os.Getenv(mainEnv) != "":
		main()
		os.Exit(0)
	}
	os.Exit(withCache(m))
}

// cacheFolder keeps what the processes compile, so that they do it once.
var cacheFolder string

func withCache(m *testing.M) int {
	var err error
	if cacheFolder, err = os.MkdirTemp("", "mscclgo-test-cache-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(cacheFolder)
	return m.Run()
}

// soon is within what a process must have ended once something is wrong.
const soon = 15 * time.Second

// scene is where the processes of a test run.
type scene struct {
	t    testing.TB
	mark string // in the environment of all its processes
	temp string // the folder for temporary files
	kind string // of the device
}

// newScene checks, when the test ends, that nothing is left of it.
func newScene(t testing.TB) *scene {
	t.Helper()
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	s := &scene{t: t, mark: fmt.Sprintf("%s=%d-%s", runEnv, os.Getpid(), t.Name()), temp: t.TempDir(), kind: kind}
	shared := list(t, "/dev/shm")
	t.Cleanup(func() {
		for pid := range s.processes() {
			t.Errorf("process %d is left", pid)
		}
		for name := range list(t, cacheFolder) {
			if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".lock") {
				t.Errorf("the cache holds %s", name)
			}
		}
		for name := range list(t, s.temp) {
			t.Errorf("%s is left in the temporary folder", name)
		}
		for name := range list(t, "/dev/shm") {
			if !shared[name] && strings.Contains(name, "mscclgo") {
				t.Errorf("%s is left in /dev/shm", name)
			}
		}
	})
	return s
}

func list(t testing.TB, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}

// processes gives the environments of the scene's processes, by process id.
func (s *scene) processes() map[int]string {
	found := map[int]string{}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err != nil || !strings.Contains("\x00"+string(environment), "\x00"+s.mark+"\x00") {
			continue // of another user, gone, or not ours
		}
		if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
			found[pid] = string(environment)
		}
	}
	return found
}

// process is one that runs the sample.
type process struct {
	s      *scene
	cmd    *exec.Cmd
	stdout lockedBuffer
	stderr lockedBuffer
	ended  chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs the sample with a few more variables.
func (s *scene) start(env []string, args ...string) *process {
	s.t.Helper()
	program, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	return s.run(exec.Command(program, args...), env)
}

// run starts a command that runs the sample.
func (s *scene) run(cmd *exec.Cmd, env []string) *process {
	s.t.Helper()
	p := &process{s: s, cmd: cmd, ended: make(chan struct{})}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MSCCLGO_DEVICE":
		default:
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, mainEnv+"=1", s.mark, "MSCCLGO_CACHE="+cacheFolder, "TMPDIR="+s.temp)
	if s.kind != "" {
		p.cmd.Env = append(p.cmd.Env, "MSCCLGO_DEVICE="+s.kind)
	}
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		close(p.ended)
	}()
	s.t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// anyFailure stands for all exit codes but 0.
const anyFailure = -2

// end waits for the process and checks its exit code and that its standard
// error holds all parts.
func (p *process) end(code int, parts ...string) {
	p.s.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(soon):
		p.s.t.Fatalf("it has not ended after %v:\n%s%s", soon, &p.stdout, &p.stderr)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code && (code != anyFailure || got == 0) {
		p.s.t.Errorf("it ended with code %d, want %d:\n%s", got, code, &p.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(p.stderr.String(), part) {
			p.s.t.Errorf("standard error lacks %q:\n%s", part, &p.stderr)
		}
	}
}

// says waits until the process has written something to standard output.
func (p *process) says(part string) {
	p.s.t.Helper()
	for start := time.Now(); !strings.Contains(p.stdout.String(), part); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			p.s.t.Fatalf("it does not say %q:\n%s%s", part, &p.stdout, &p.stderr)
		}
	}
}

// rankEnv are a rank's variables.
func rankEnv(id fmt.Stringer, rank, size int) []string {
	return []string{
		bootstrap.EnvID + "=" + id.String(),
		fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size),
		fmt.Sprintf("LOCAL_RANK=%d", rank), fmt.Sprintf("LOCAL_WORLD_SIZE=%d", size),
	}
}

func newRendezvous(t testing.TB) *bootstrap.Rendezvous {
	t.Helper()
	r, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// endless are arguments for a run that is stopped in the middle.
var endless = []string{"-min", "1024", "-max", "1024", "-iters", "100000000"}

// TestRankKilled kills a rank in the middle of a run that no launcher watches.
func TestRankKilled(t *testing.T) {
	for _, algo := range []string{"oneShotLL16", "oneShotLL128", "direct", "ring"} {
		t.Run(algo, func(t *testing.T) {
			s, id := newScene(t), newRendezvous(t).ID()
			var all []*process
			for rank := range 3 {
				all = append(all, s.start(rankEnv(id, rank, 3), append([]string{"-algo", algo}, endless...)...))
			}
			all[0].says("# all-reduce")
			time.Sleep(300 * time.Millisecond)
			if err := all[2].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			all[2].end(-1) // by a signal
			all[0].end(1, "rank 2")
			all[1].end(1, "rank 2")
			t.Logf("the others ended %v later", time.Since(start))
		})
	}
}

// TestLaunchedRankKilled kills a rank of a program that started its own. Its
// code is that of the rank that the launcher saw end first, which may be the one
// that complains.
func TestLaunchedRankKilled(t *testing.T) {
	s := newScene(t)
	p := s.start(nil, append([]string{"-n", "2"}, endless...)...)
	p.says("# all-reduce")
	killed := false
	for pid, environment := range s.processes() {
		if strings.Contains(environment, "\x00RANK=1\x00") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			killed = true
		}
	}
	if !killed {
		t.Fatal("found no rank 1")
	}
	p.end(anyFailure, "rank 1", "SIGKILL")
}

// TestInterrupted stops a run as a user does.
func TestInterrupted(t *testing.T) {
	s := newScene(t)
	p := s.start(nil, append([]string{"-n", "2"}, endless...)...)
	p.says("# all-reduce")
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.end(128 + int(syscall.SIGINT))
}

func TestBadDevice(t *testing.T) {
	for name, part := range map[string]string{"emu:999": "emu:999", "tpu": "tpu", "emu:one": "one", "cuda:999": "CUDA"} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.kind = ""
			s.start(nil, "-n", "1", "-device", name).end(1, part)
		})
	}
}

func TestNoDriver(t *testing.T) {
	if d, err := gpu.Open("cuda:0"); err == nil {
		d.Close()
		t.Skip("there is a driver and a GPU")
	}
	for _, name := range []string{"cuda", "cuda:0"} {
		s := newScene(t)
		s.kind = name
		s.start(nil, "-n", "1").end(1, "unsupported", "cuda")
	}
}

func TestOutOfMemory(t *testing.T) {
	if testdev.CUDA() {
		newScene(t).start(nil, "-n", "1", "-max", "1000000000000000").end(1, "out of memory")
		return
	}
	newScene(t).start([]string{"MSCCLGO_EMU_MEMORY=10000000"}, "-n", "2", "-max", "100000000").end(1, "out of device memory")
}

func TestTwoRanksOfOneNumber(t *testing.T) {
	s, id := newScene(t), newRendezvous(t).ID()
	all := []*process{s.start(rankEnv(id, 0, 3)), s.start(rankEnv(id, 1, 3)), s.start(rankEnv(id, 1, 3))}
	for _, p := range all {
		p.end(1, "invalid use", "rank 1")
	}
}

func TestWorldSizesDiffer(t *testing.T) {
	s, id := newScene(t), newRendezvous(t).ID()
	all := []*process{s.start(rankEnv(id, 0, 3)), s.start(rankEnv(id, 1, 3)), s.start(rankEnv(id, 2, 4))}
	for _, p := range all {
		p.end(1, "invalid use", "3", "4")
	}
}

func TestMissingRanks(t *testing.T) {
	s, id := newScene(t), newRendezvous(t).ID()
	all := []*process{s.start(rankEnv(id, 0, 4), "-timeout", "2s"), s.start(rankEnv(id, 2, 4), "-timeout", "2s")}
	for _, p := range all {
		p.end(1, "timeout", "1", "3")
	}
}

func TestMalformedID(t *testing.T) {
	s := newScene(t)
	for _, text := range []string{"nonsense", newRendezvous(t).ID().String()[1:], newRendezvous(t).ID().String() + "0"} {
		env := append(rankEnv(newRendezvous(t).ID(), 0, 1), bootstrap.EnvID+"="+text)
		s.start(env).end(1, "invalid use", bootstrap.EnvID)
	}
}

// TestStaleID uses the id of a group whose rendezvous is gone.
func TestStaleID(t *testing.T) {
	r := newRendezvous(t)
	id := r.ID()
	r.Close()
	newScene(t).start(rankEnv(id, 1, 2), "-timeout", "2s").end(1, "timeout", id.Addr())
}

// TestStranger sends noise to every port that the ranks listen on, while a run
// goes on.
func TestStranger(t *testing.T) {
	s, r := newScene(t), newRendezvous(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { noise(stop, r.ID().Addr()) })
	var all []*process
	for rank := range 2 {
		all = append(all, s.start(rankEnv(r.ID(), rank, 2), "-min", "1024", "-max", "16384", "-iters", "200"))
	}
	all[0].says("# all-reduce")
	ports := 0
	for _, p := range all {
		for _, addr := range listening(p.cmd.Process.Pid) {
			ports++
			wg.Go(func() { noise(stop, addr) })
		}
	}
	for _, p := range all {
		p.end(0)
	}
	close(stop)
	wg.Wait()
	if ports == 0 {
		t.Error("found no port on which a rank listens")
	}
	if rows := strings.Count(all[0].stdout.String(), " f32 "); rows != 3 {
		t.Errorf("%d rows:\n%s", rows, &all[0].stdout)
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

// listening gives the TCP addresses of this machine on which a process listens.
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
