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
// longer than timeout. What rank 0 writes to out is printed.
func Main(device string, timeout time.Duration, run func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	comm, err := communicator.Join(ctx, communicator.Options{Device: device})
	if err != nil {
		log.Fatal(err)
	}
	out := io.Discard
	if comm.Rank() == 0 {
		out = os.Stdout
	}
	if err = run(ctx, comm, out); err != nil {
		comm.Abort(err)
	}
	if err = errors.Join(err, comm.Close()); err != nil {
		log.Fatal(err)
	}
}
