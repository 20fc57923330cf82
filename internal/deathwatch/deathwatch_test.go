package deathwatch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

const roleVariable = "DEATHWATCH_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		hold(os.Args[1])
		return
	}
	os.Exit(m.Run())
}

// group starts a process group of a shell and its child, and returns the shell's.
func group(dir string) (*exec.Cmd, error) {
	cmd := exec.Command("/bin/sh", "-c", "sleep 100 & echo $! >"+dir+"/tmp; mv "+dir+"/tmp "+dir+"/child; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, cmd.Start()
}

// hold watches over a folder and a group, and another group that it removes again, until
// it is killed.
func hold(dir string) {
	w, err := Start(dir + "/folder")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"watched", "free"} {
		cmd, err := group(filepath.Join(dir, name))
		if err != nil {
			panic(err)
		}
		w.Add(cmd.Process.Pid)
		if name == "free" {
			w.Remove(cmd.Process.Pid)
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	w.Close() // until here it must not be garbage, which would close the pipe
}

// child returns the process id that a group's child has.
func child(t *testing.T, dir string) int {
	t.Helper()
	for range 1000 {
		if text, err := os.ReadFile(dir + "/child"); err == nil {
			return testerr.Must(strconv.Atoi(strings.TrimSpace(string(text))))(t)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the group did not start")
	return 0
}

// runs reports whether a process is there and no zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("after 10 s not so: %s", what)
}

func TestKilled(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"watched", "free", "folder", "folder/deep"} {
		testerr.Check(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir)
	cmd.Env = append(os.Environ(), roleVariable+"=hold")
	out := testerr.Must(cmd.StdoutPipe())(t)
	testerr.Check(t, cmd.Start())
	testerr.Must(out.Read(make([]byte, 5)))(t)
	watched, free := child(t, dir+"/watched"), child(t, dir+"/free")
	defer syscall.Kill(free, syscall.SIGKILL)
	cmd.Process.Kill()
	cmd.Wait()
	within(t, "the watched group has ended", func() bool { return !runs(watched) })
	within(t, "the folder is gone", func() bool { _, err := os.Stat(dir + "/folder"); return os.IsNotExist(err) })
	if !runs(free) {
		t.Error("a group that was removed has been killed")
	}
}

func TestClose(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "a folder; with a name")
	testerr.Check(t, os.Mkdir(folder, 0o700))
	w := testerr.Must(Start(folder))(t)
	cmd := testerr.Must(group(dir))(t)
	w.Add(cmd.Process.Pid)
	w.Add(cmd.Process.Pid)
	testerr.Report(t, w.Close())
	cmd.Wait()
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}
