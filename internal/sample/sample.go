// Package sample is the frame of the samples that print a table: join the group,
// run, leave it.
package sample

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
)

// Main joins the group of the environment on a device, calls run, leaves the
// group, and ends the process with code 1 if anything of that failed or took
// longer than timeout. What rank 0 writes to out is printed. An interrupt or
// SIGTERM ends the context, and then the process, so that nothing is left behind.
func Main(device string, timeout time.Duration, run func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error) {
	err := Run(communicator.Options{Device: device}, timeout, func(ctx context.Context, comm *communicator.Communicator) error {
		out := io.Discard
		if comm.Rank() == 0 {
			out = os.Stdout
		}
		return run(ctx, comm, out)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Run is the part of Main that gives its error: it joins the group of the
// environment, calls run and leaves the group. An interrupt or SIGTERM ends the
// process all the same.
func Run(o communicator.Options, timeout time.Duration, run func(ctx context.Context, comm *communicator.Communicator) error) error {
	ctx, end := interruptible(context.Background())
	defer end()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	comm, err := communicator.Join(ctx, o)
	if err != nil {
		return err
	}
	if err = run(ctx, comm); err != nil {
		comm.Abort(err)
	}
	return errors.Join(err, comm.Close())
}
