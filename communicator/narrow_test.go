package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// narrowEnv makes the test's program a rank of TestNarrowLink; its value is a file that appears once the
// link of the second host drops large packets.
const narrowEnv = "MSCCLGO_TEST_NARROW"

// TestNarrowLink has the network between two hosts drop large packets only: the ranks say which link does,
// and blame no rank for the signals that are behind them.
func TestNarrowLink(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
	file := filepath.Join(t.TempDir(), "narrow")
	lab := netlab.New(t, 2, netlab.Options{Whole: true})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends := onHosts(ctx, t, lab, 2, narrowEnv+"="+file)
	lab.Hosts[1].Narrow(600)
	testerr.Check(t, os.WriteFile(file, nil, 0o600))
	testerr.Report(t, errors.Join(<-ends, <-ends, <-ends, <-ends))
}

func narrowChild(file string) error {
	const bytes, small, rounds = 64 << 10, 64, 10
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := communicator.Join(ctx, communicator.Options{Timeout: verdictTimeout})
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := newWorker(ctx, c)
	if err != nil {
		return err
	}
	local, err := gpu.Upload(c.Device(), make([]byte, bytes))
	if err != nil {
		return err
	}
	times, err := gpu.Upload(c.Device(), make([]uint32, rounds))
	if err != nil {
		return err
	}
	s, err := c.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err != nil {
		return err
	}
	channels, err := c.PortChannels(ctx, s, local, communicator.PortChannelOptions{})
	if err != nil {
		return err
	}
	peer := c.Rank() ^ 2 // on the other host
	if err := w.run(ctx, "portVolley", 1, channels.HandleOf(0, peer), uint64(small), uint32(rounds), c.Rank() < peer, times); err != nil {
		return err
	}
	fmt.Println("ready")
	for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
		time.Sleep(time.Millisecond)
	}
	w.run(ctx, "portVolley", 1, channels.HandleOf(0, peer), uint64(bytes), uint32(rounds), c.Rank() < peer, times)
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "large messages do not pass") {
		return fmt.Errorf("the error does not tell of the link: %w", err)
	}
	return nil
}
