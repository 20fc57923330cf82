// Package testproc runs a test's own program in processes of its own, and checks that
// nothing is left of them.
package testproc

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

const (
	MainEnv = "MSCCLGO_TEST_MAIN" // the test's program is the one that is tested
	runEnv  = "MSCCLGO_TEST_RUN"  // marks the processes of one test
)

// Main is what TestMain calls: it runs main in a process that a [Scene] started, and
// the tests in others. It does not return.
func Main(m *testing.M, main func()) {
	if os.Getenv(MainEnv) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(withCache(m))
}

// cacheFolder keeps what the processes compile, so that they do it once.
var cacheFolder string

func withCache(m *testing.M) int {
	dir, remove, err := kernelCache()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	cacheFolder = dir
	if signal.Ignored(os.Interrupt) { // as in a shell's background job: what it starts would ignore it too
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	return m.Run()
}

// soon is the time within which a process must end once something is wrong: less than the
// default timeout of waits, which must not be what ends it.
const soon = 25 * time.Second

// begins is the time within which a process must say something that it says after it has
// compiled its kernels, also on a machine that compiles for others.
const begins = 3 * time.Minute

// Scene runs the processes of a test.
type Scene struct {
	T    testing.TB
	Kind string // of the processes' devices; "" sets none
	mark string // in the environment of all its processes
	temp string // the folder for temporary files
}

// New makes a scene and checks, when the test ends, that nothing is left of it.
func New(t testing.TB) *Scene {
	t.Helper()
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	s := &Scene{T: t, mark: fmt.Sprintf("%s=%d-%s", runEnv, os.Getpid(), t.Name()), temp: t.TempDir(), Kind: kind}
	shared := list(t, "/dev/shm")
	t.Cleanup(func() {
		for pid := range s.Processes() {
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

// Temp returns the folder for temporary files of the processes.
func (s *Scene) Temp() string { return s.temp }

// Processes returns the environments of the scene's processes, by process id.
func (s *Scene) Processes() map[int]string {
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

// Process is one of a scene.
type Process struct {
	s      *Scene
	Cmd    *exec.Cmd
	Stdout Buffer
	Stderr Buffer
	Ended  chan struct{} // closed when it has ended
}

// Buffer holds what a process has written so far. It may be read meanwhile.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *Buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what has been written.
func (l *Buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Start runs the test's program, as Main's main, with a few more variables.
func (s *Scene) Start(env []string, args ...string) *Process {
	s.T.Helper()
	program, err := os.Executable()
	if err != nil {
		s.T.Fatal(err)
	}
	return s.Run(exec.Command(program, args...), env)
}

// Run starts a command that runs the test's program.
func (s *Scene) Run(cmd *exec.Cmd, env []string) *Process {
	s.T.Helper()
	p := &Process{s: s, Cmd: cmd, Ended: make(chan struct{})}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MSCCLGO_DEVICE":
		default:
			p.Cmd.Env = append(p.Cmd.Env, v)
		}
	}
	p.Cmd.Env = append(p.Cmd.Env, MainEnv+"=1", s.mark, "MSCCLGO_CACHE="+cacheFolder, "TMPDIR="+s.temp)
	if s.Kind != "" {
		p.Cmd.Env = append(p.Cmd.Env, "MSCCLGO_DEVICE="+s.Kind)
	}
	p.Cmd.Env = append(p.Cmd.Env, env...)
	p.Cmd.Stdout, p.Cmd.Stderr = &p.Stdout, &p.Stderr
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	go func() {
		p.Cmd.Wait()
		close(p.Ended)
	}()
	s.T.Cleanup(func() {
		p.Cmd.Process.Kill()
		<-p.Ended
	})
	return p
}

// AnyFailure stands for all exit codes but 0.
const AnyFailure = -2

// End waits for the process and checks its exit code and that its standard
// error holds all parts.
func (p *Process) End(code int, parts ...string) {
	p.s.T.Helper()
	select {
	case <-p.Ended:
	case <-time.After(soon):
		p.s.T.Fatalf("it has not ended after %v:\n%s%s", soon, &p.Stdout, &p.Stderr)
	}
	if got := p.Cmd.ProcessState.ExitCode(); got != code && (code != AnyFailure || got == 0) {
		p.s.T.Errorf("it ended with code %d, want %d:\n%s", got, code, &p.Stderr)
	}
	for _, part := range parts {
		if !strings.Contains(p.Stderr.String(), part) {
			p.s.T.Errorf("standard error lacks %q:\n%s", part, &p.Stderr)
		}
	}
}

// Says waits until the process has written something to standard output.
func (p *Process) Says(part string) {
	p.s.T.Helper()
	for start := time.Now(); !strings.Contains(p.Stdout.String(), part); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > begins {
			p.s.T.Fatalf("it does not say %q:\n%s%s", part, &p.Stdout, &p.Stderr)
		}
	}
}

// RankEnv returns a rank's variables, as a launcher sets them.
func RankEnv(id fmt.Stringer, rank, size int) []string {
	return []string{
		bootstrap.EnvID + "=" + id.String(),
		fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", size),
		fmt.Sprintf("LOCAL_RANK=%d", rank), fmt.Sprintf("LOCAL_WORLD_SIZE=%d", size),
	}
}

// Place is where a rank of a group on several hosts is.
type Place struct {
	Host int
	Env  []string // the rank's variables, as a launcher sets them, but not where the group meets
}

// Places returns the places of all ranks: Places(1, 3) has rank 0 on the first host and ranks 1 to
// 3 on the second.
func Places(perHost ...int) (all []Place) {
	ranks := 0
	for _, n := range perHost {
		ranks += n
	}
	for host, n := range perHost {
		for local := range n {
			all = append(all, Place{host, []string{
				fmt.Sprintf("RANK=%d", len(all)), fmt.Sprintf("WORLD_SIZE=%d", ranks),
				fmt.Sprintf("LOCAL_RANK=%d", local), fmt.Sprintf("LOCAL_WORLD_SIZE=%d", n),
			}})
		}
	}
	return all
}

// NewRendezvous returns a rendezvous on this machine, which is closed when the test ends.
func NewRendezvous(t testing.TB) *bootstrap.Rendezvous {
	t.Helper()
	r, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}
