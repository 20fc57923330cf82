package launcher

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
)

// defaultGrace is the Grace of Options that set none.
const defaultGrace = 5 * time.Second

// Options select what [Run] starts and where the output is written.
type Options struct {
	// Ranks is the number of processes, from 1 to bootstrap.MaxSize.
	Ranks int
	// Program is a path, or a name that is looked up in PATH. Args are its
	// arguments, without the program's name.
	Program string
	Args    []string
	// Env is added to this process's environment, and overrides it. The
	// variables that make a process a rank override both. Unless one of MASTER_ADDR and MASTER_PORT is
	// set, the ranks get both, of a port that is free, for programs that also use torch.distributed.
	Env []string
	// Stdin is what rank 0 reads. The other ranks read an empty input, and so does
	// rank 0 if Stdin is nil, or is a terminal that this process may not read
	// because it runs in the background. A reader that is not an *os.File may be
	// read once more after Run has returned.
	Stdin io.Reader
	// Stdout and Stderr receive the ranks' output in whole lines: nothing is
	// written between the bytes of a line, a newline is added to a last line
	// without one, and lines over 64 KiB are broken. The two are never written at
	// the same time, so they may be one writer. Nil discards.
	Stdout, Stderr io.Writer
	// Prefix puts the rank before every line, as in "[ 3] ".
	Prefix bool
	// Logger gets a record of each stranger that the ranks' rendezvous refuses, and of ranks that are
	// stopped while no other runs any more. Nil discards.
	Logger *slog.Logger
	// Grace is how long ranks may take to end after SIGTERM before they get
	// SIGKILL. Zero means 5 seconds.
	Grace time.Duration
	// Signals, unless nil, delivers the signals to forward, each a [syscall.Signal]. Run then leaves this
	// process's own signals alone. It is for a library in another program's process.
	Signals <-chan os.Signal
}

// check returns an error for invalid options, and sets defaults.
func (o *Options) check() error {
	const op = "launcher: check options"
	switch {
	case o.Ranks < 1 || o.Ranks > bootstrap.MaxSize:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Ranks is %d, a group has from 1 to %d ranks", o.Ranks, bootstrap.MaxSize)
	case o.Program == "":
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Program is empty")
	case o.Grace < 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Options.Grace is %v, which is negative", o.Grace)
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return nil
}
