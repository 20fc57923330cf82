package devicecode

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/deathwatch"
)

// workspace is where one compilation runs compilers: a temporary folder, made when it is
// first needed. If this process is killed, a shell removes the folder and kills the
// compiler.
type workspace struct {
	op    string // for errors
	path  string // "" if there is none yet
	watch *deathwatch.Watch
}

// dir returns the folder.
func (w *workspace) dir() (string, error) {
	if w.path != "" {
		return w.path, nil
	}
	path, watch, err := deathwatch.Folder("mscclgo-")
	if err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, w.op, "cannot make a temporary folder: %w", err)
	}
	w.path, w.watch = path, watch
	return path, nil
}

// close removes the folder, also where there is no shell to do so.
func (w *workspace) close() {
	if w.path != "" {
		w.watch.Close()
		os.RemoveAll(w.path)
	}
}

// held is a shell that runs a command once a line has come, and ends if none comes: the process
// that would have written it was killed before the watch knew of the command.
const held = `read -r line <&3 && exec 3<&- && exec "$@"`

// hold has a command wait, after its Start, until begin is called, whether or not it has
// started. Where there is no watch it does not wait.
func (w *workspace) hold(cmd *exec.Cmd) (begin func(started bool), err error) {
	if w.watch == nil || cmd.Err != nil {
		return func(bool) {}, nil
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Args = append([]string{"sh", "-c", held, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path, cmd.ExtraFiles = sh, []*os.File{read}
	return func(started bool) {
		read.Close()
		if started {
			write.WriteString("\n") // it fails where the shell was killed
		}
		write.Close()
	}, nil
}

// longestMessage is the most bytes of a compiler's message that an error has.
const longestMessage = 16 << 10

// run runs a compiler and returns its standard output. Its temporary files are in the
// folder. When ctx or this process ends, it is killed with all its children.
func (w *workspace) run(ctx context.Context, args []string, stdin []byte) ([]byte, error) {
	dir, err := w.dir()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	begin, err := w.hold(cmd)
	if err == nil {
		if err = cmd.Start(); err == nil {
			w.watch.Add(cmd.Process.Pid)
		}
		begin(err == nil)
	}
	if err == nil {
		deathwatch.Await(cmd.Process.Pid)
		w.watch.Remove(cmd.Process.Pid)
		err = cmd.Wait()
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, mscclgo.FromContext(ctx, w.op, "while "+args[0]+" was running")
	}
	message := strings.TrimSpace(stderr.String())
	if len(message) > longestMessage {
		message = message[:longestMessage] + "\n..."
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() && message != "" {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, w.op, "%s reports:\n%s", args[0], message)
	}
	return nil, mscclgo.Errorf(mscclgo.ErrSystem, w.op, "%s failed: %w\n%s", args[0], err, message)
}
