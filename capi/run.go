package capi

// #include "process.h"
import "C"

import (
	"context"
	"io"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/launcher"
)

func (c *call) run(ranks int, command **C.char, signals int, code *C.int) error {
	need(c.to("run ranks"), command)
	need(c, code)
	*code = 1
	argv := texts(command)
	if len(argv) == 0 {
		return invalid(c.op, "the command has no program")
	}
	readEnvironment()
	numbers, stop, err := readSignals(signals)
	c.check(err)
	defer stop()
	result, err := launcher.Run(context.Background(), launcher.Options{
		Ranks:   ranks,
		Program: argv[0],
		Args:    argv[1:],
		Stdout:  descriptor(unix.Stdout),
		Stderr:  descriptor(unix.Stderr),
		Logger:  logger(),
		Signals: numbers,
	})
	*code = C.int(result)
	return err
}

// descriptor writes to a descriptor of the process's. An os.File of standard output would end the process when
// nobody reads it any more, also where the program ignores SIGPIPE.
type descriptor int

func (d descriptor) Write(p []byte) (done int, err error) {
	for done < len(p) {
		n, err := unix.Write(int(d), p[done:])
		switch {
		case n > 0:
			done += n
		case err == unix.EAGAIN: // the program has made it not to block
			ready := []unix.PollFd{{Fd: int32(d), Events: unix.POLLOUT}}
			if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
				return done, err
			}
		case err == nil:
			return done, io.ErrShortWrite
		case err != unix.EINTR:
			return done, err
		}
	}
	return done, nil
}
