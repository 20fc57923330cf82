package launcher

import (
	"io"
	"time"

	"github.com/mscclgo/mscclgo"
)

// defaultGrace is the Grace of Options that name none.
const defaultGrace = 5 * time.Second

// Options says what [Run] starts and where the output goes.
type Options struct {
	// Ranks is the number of processes, at least 1.
	Ranks int
	// Program is a path, or a name that is looked up in PATH. Args are its
	// arguments, without the program's name.
	Program string
	Args    []string
	// Env is added to this process's environment, and overrides it. The
	// variables that make a process a rank override both.
	Env []string
	// Stdin is what rank 0 reads; the other ranks read an empty input, and so
	// does rank 0 when it is nil, or is a terminal that this process may not
	// read because it runs in the background. A reader that is not an *os.File
	// may still be read once after Run has returned.
	Stdin io.Reader
	// Stdout and Stderr take the ranks' output in whole lines: nothing comes
	// between the bytes of a line, a last line without an end gets one, and
	// lines over 64 KiB are broken. They are never written at the same time,
	// even where they are one writer. Nil discards.
	Stdout, Stderr io.Writer
	// Prefix puts the rank before every line, as in "[ 3] ".
	Prefix bool
	// Grace is how long ranks that were told to end by SIGTERM may take before
	// they get SIGKILL. Zero means 5 seconds.
	Grace time.Duration
}

// check finds what cannot be right and fills in what was left out.
func (o *Options) check() error {
	const op = "launcher: check options"
	switch {
	case o.Ranks < 1:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%d ranks asked for, the least is 1", o.Ranks)
	case o.Program == "":
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "no program to run: set Program")
	case o.Grace < 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "a grace of %v is in the past", o.Grace)
	}
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return nil
}
