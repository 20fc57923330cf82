package sample_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/sample"
)

// A launcher sets the environment; here it is that of a group of one rank.
func ExampleMain() {
	rendezvous, err := bootstrap.NewRendezvous("127.0.0.1:0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rendezvous.Close()
	for name, value := range map[string]string{
		bootstrap.EnvID: rendezvous.ID().String(), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
	} {
		os.Setenv(name, value)
		defer os.Unsetenv(name)
	}
	sample.Main("emu", time.Minute, func(ctx context.Context, comm *communicator.Communicator, out io.Writer) error {
		_, err := fmt.Fprintf(out, "rank %d of %d on %v\n", comm.Rank(), comm.Size(), comm.Device())
		return err
	})
	// Output: rank 0 of 1 on emu:0
}
