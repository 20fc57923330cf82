package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// silentHostEnv makes the test's program a rank of TestCloseAfterAHostIsSilent.
const silentHostEnv = "MSCCLGO_TEST_SILENT_HOST"

// TestCloseAfterAHostIsSilent has ranks close a group that has failed because the other host is silent. They wait
// for none of its ranks to take the news, whether the error names the rank or not.
func TestCloseAfterAHostIsSilent(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lab := netlab.New(t, 2, netlab.Options{})
	ends := onHosts(ctx, t, lab, 2, silentHostEnv+"=1")
	lab.Hosts[1].Mute()
	if err := errors.Join(<-ends, <-ends, <-ends, <-ends); err != nil { // each host takes the other for silent
		t.Error(err)
	}
}

func silentHostChild() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := communicator.Join(ctx, communicator.Options{HeartbeatTimeout: time.Second})
	if err != nil {
		return err
	}
	conn, err := c.Connect(ctx, (c.Rank()+2)%4, 0)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	if err := c.Barrier(ctx); err != nil {
		return errors.Join(err, conn.Close(), c.Close())
	}
	fmt.Println("ready")
	<-c.Done()
	var e *mscclgo.Error
	if !errors.As(c.Err(), &e) || e.Peer/2 == c.Rank()/2 {
		return fmt.Errorf("the error names no rank of the other host: %w", c.Err())
	}
	start := time.Now()
	err = errors.Join(conn.Close(), c.Close())
	if took := time.Since(start); took > 3*time.Second {
		err = errors.Join(err, fmt.Errorf("it took %v to close", took))
	}
	return err
}
