package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Exit codes of the command itself. Those for a program are the shell's.
const (
	exitOK        = 0
	exitFailed    = 1
	exitUsage     = 2
	exitUnwatched = 3 // of race: it found nothing, and has not watched all
	exitCannotRun = 126
	exitNotFound  = 127
)

// command is one thing that mscclgo does.
type command struct {
	name    string
	takes   string // what follows the name in the usage line
	summary string
	run     func(c *call) error
}

// call is one use of a command.
type call struct {
	command
	flags          *flag.FlagSet
	args           []string // all that followed the name
	stdin          io.Reader
	stdout, stderr io.Writer
}

func newCall(c command, args []string, stdin io.Reader, stdout, stderr io.Writer) *call {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // do prints what is wrong
	return &call{command: c, flags: flags, args: args, stdin: stdin, stdout: stdout, stderr: stderr}
}

// do runs the command and returns the code to exit with.
func (c *call) do() int {
	err := c.runOrHelp()
	var wrong *usageError
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wrong):
		fmt.Fprintf(c.stderr, "mscclgo %s: %v\n%sRun \"mscclgo help %s\" for its flags.\n", c.name, err, c.usageLine(), c.name)
		return exitUsage
	}
	fmt.Fprintf(c.stderr, "mscclgo %s: %v\n", c.name, err)
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitFailed
}

// runOrHelp runs the command, or describes it where its arguments ask for that.
func (c *call) runOrHelp() error {
	err := c.run(c)
	if errors.Is(err, flag.ErrHelp) {
		return writeAll(c.stdout, c.usage)
	}
	return err
}

// parse parses the flags. What is left is in c.flags.Args.
func (c *call) parse() error {
	err := c.flags.Parse(c.args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return &usageError{err.Error()}
	}
	return err
}

// parseOnly is parse for a command that takes only flags.
func (c *call) parseOnly() error {
	if err := c.parse(); err != nil {
		return err
	}
	if c.flags.NArg() > 0 {
		return &usageError{fmt.Sprintf("it takes no argument, got %q", c.flags.Arg(0))}
	}
	return nil
}

// usageLine returns the line that shows how to call the command.
func (c *call) usageLine() string {
	return fmt.Sprintf("usage: mscclgo %s\n", strings.TrimSpace(c.name+" "+c.takes))
}

// usage prints how to call the command, with its flags.
func (c *call) usage(w io.Writer) {
	fmt.Fprintf(w, "%s  %s\n", c.usageLine(), c.summary)
	c.flags.SetOutput(w)
	c.flags.PrintDefaults()
}

// writeAll writes what print prints, and returns the error of that.
func writeAll(w io.Writer, print func(io.Writer)) error {
	var text bytes.Buffer
	print(&text)
	_, err := w.Write(text.Bytes())
	return err
}

// usageError is the error of a command that was called in a wrong way.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// exitError is a failure with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
