package launcher

import (
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// connectStdin connects a rank's standard input. A terminal is copied through a
// pipe: the rank is not in the terminal's foreground process group, so the kernel
// would stop it when it reads.
func connectStdin(cmd *exec.Cmd, in io.Reader) error {
	if in == nil {
		return nil
	}
	if f, ok := in.(*os.File); ok {
		foreground, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
		if err != nil { // not the controlling terminal
			cmd.Stdin = f
			return nil
		}
		if foreground != unix.Getpgrp() { // reading would stop this process
			return nil
		}
	}
	w, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		io.Copy(w, in) // ends with the input, or when the rank reads no more
		w.Close()
	}()
	return nil
}
