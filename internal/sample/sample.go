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
	ctx, end := interruptible(context.Background())
	err := join(ctx, device, timeout, run)
	end()
	if err != nil {
		log.Fatal(err)
	}
}

func join(ctx context.Context, device string, timeout time.Duration, run func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	comm, err := communicator.Join(ctx, communicator.Options{Device: device})
	if err != nil {
		return err
	}
	out := io.Discard
	if comm.Rank() == 0 {
		out = os.Stdout
	}
	if err = run(ctx, comm, out); err != nil {
		comm.Abort(err)
	}
	return errors.Join(err, comm.Close())
}
