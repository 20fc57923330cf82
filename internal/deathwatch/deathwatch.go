// Package deathwatch cleans up behind a process that is killed: processes that it
// started end with it, and its temporary folders are removed. A process that gets
// SIGKILL can do neither, and PR_SET_PDEATHSIG reaches its children only, not theirs.
package deathwatch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// script learns from its input which process groups live ("+ 123", "- 123") and acts
// when the input ends, which the kernel sees to however the writer dies. A process that
// was just killed may have a file open, so the removal is tried once more.
const script = `trap '' HUP INT QUIT TERM
groups=
while read -r sign id; do
	rest=
	for g in $groups; do [ "$g" = "-$id" ] || rest="$rest $g"; done
	groups=$rest
	[ "$sign" = - ] || groups="$groups -$id"
done
[ -z "$groups" ] || kill -KILL $groups
rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }`

// A Watch is a shell that outlives this process. A nil Watch does nothing.
type Watch struct {
	cmd *exec.Cmd

	mu sync.Mutex
	in io.WriteCloser
}

// Start starts a watch that removes the folders, which have absolute paths, when it is
// closed or this process ends. It fails where there is no shell.
func Start(folders ...string) (*Watch, error) {
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, folders...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not ended with this process's group
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Watch{cmd: cmd, in: in}, nil
}

// Folder makes a temporary folder, whose name begins with prefix, and a watch that removes it. Where there is no
// shell the watch is nil, and only the caller removes the folder.
func Folder(prefix string) (string, *Watch, error) {
	var random [8]byte
	rand.Read(random[:]) // never fails
	path, err := filepath.Abs(filepath.Join(os.TempDir(), prefix+hex.EncodeToString(random[:])))
	if err != nil {
		return "", nil, err
	}
	// First, since this process may be killed any time. Without descriptors the folder could not be
	// emptied later either.
	w, err := Start(path)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "", nil, err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		w.Close()
		return "", nil, err
	}
	return path, w, nil
}

// Add has a process group killed when this process ends.
func (w *Watch) Add(group int) { w.tell("+", group) }

// Remove forgets a process group. It is called before the group's number may be used
// again, that is, after [Await] and before its leader's status is collected.
func (w *Watch) Remove(group int) { w.tell("-", group) }

// tell writes a line to the shell. That fails only if somebody has killed it.
func (w *Watch) tell(sign string, group int) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintln(w.in, sign, group)
}

// Close kills the groups that were not removed, removes the folders, and returns when
// that is done.
func (w *Watch) Close() error {
	if w == nil {
		return nil
	}
	w.in.Close()
	return w.cmd.Wait()
}

// Await returns when a child of this process has ended. Until its status is collected,
// its process id, and so the number of the group that it leads, is not used again.
func Await(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}
