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
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// lossyEnv makes the test's program a rank of TestHostsLosePackets; its value is a file that appears
// once the network loses packets.
const lossyEnv = "MSCCLGO_TEST_LOSSY"

// TestHostsLosePackets has rank 1 close a connection while the network loses what it says. TCP says
// it again later than what rank 0 had sent before, which comes to a connection that is closed.
func TestHostsLosePackets(t *testing.T) {
	for name, test := range map[string]struct {
		resends      string // the least time after which TCP of rank 1's host sends again
		loses, stays time.Duration
	}{
		// TCP sends again after 0.2, 0.6, 1.4 and 3 s. What rank 0 sends at once comes with the third
		// time, and what rank 1 says half a second later only after that.
		"quick answers": {"200ms", 1200 * time.Millisecond, 0},
		// As where answers are slow, what rank 1 says is sent again after 0.6, 1.8 and 4.2 s.
		"slow answers": {"600ms", 2600 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) { losePackets(t, test.resends, test.loses, test.stays) })
	}
}

func losePackets(t *testing.T, resends string, loses, stays time.Duration) {
	if testdev.CUDA() {
		t.Skip("hosts of network namespaces are tested with emulated devices")
	}
	file := filepath.Join(t.TempDir(), stays.String()) // for which rank 1 stays in the group
	lab := netlab.New(t, 2, netlab.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := lab.Hosts[1].Command(ctx, "ip", "route", "replace", "10.78.0.0/24", "dev", "eth0", "rto_min", resends).CombinedOutput(); err != nil {
		t.Fatalf("ip route: %v: %s", err, out)
	}
	ends := onHosts(ctx, t, lab, 1, lossyEnv+"="+file)
	lab.Hosts[1].Mute()
	testerr.Check(t, os.WriteFile(file, nil, 0o600))
	time.Sleep(loses)
	lab.Hosts[1].Unmute()
	testerr.Report(t, errors.Join(<-ends, <-ends))
}

// onHosts starts the test's program as so many ranks on each of two hosts, and returns when all are ready.
// Each sends why it ended, or nil.
func onHosts(ctx context.Context, t *testing.T, lab *netlab.Lab, each int, env string) <-chan error {
	t.Helper()
	program := testerr.Must(os.Executable())(t)
	outputs := make([]testproc.Buffer, 2*each)
	ends := make(chan error, 2*each)
	for rank, p := range testproc.Places(each, each) {
		cmd := lab.Hosts[p.Host].Command(ctx, program)
		cmd.Env = append(append(append(os.Environ(), lab.Env()...), p.Env...), env, "MSCCLGO_DEVICE=emu")
		cmd.Stdout, cmd.Stderr = &outputs[rank], &outputs[rank]
		testerr.Check(t, cmd.Start())
		go func() {
			err := cmd.Wait()
			if err != nil {
				err = fmt.Errorf("rank %d: %w: %s", rank, err, &outputs[rank])
			}
			ends <- err
		}()
	}
	for i := range outputs {
		for !strings.Contains(outputs[i].String(), "ready") {
			select {
			case err := <-ends:
				t.Fatalf("a rank ended before the network lost anything: %v", err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return ends
}

// lossyLater is how much later than rank 0 writes rank 1 closes the connection.
const lossyLater = 500 * time.Millisecond

func lossyChild(file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return communicator.Run(ctx, communicator.Options{}, func(ctx context.Context, c *communicator.Communicator) error {
		b, err := c.Device().Alloc(64)
		if err != nil {
			return err
		}
		shared, err := c.Share(ctx, b)
		if err != nil {
			return err
		}
		defer shared.Close()
		conn, err := c.Connect(ctx, 1-c.Rank(), 0)
		if err != nil {
			return err
		}
		defer conn.Close()
		write := func() error {
			return conn.Write(shared.Memories[1-c.Rank()], 0, shared.Memories[c.Rank()], 0, 64)
		}
		if err := errors.Join(write(), conn.Flush(ctx), c.Barrier(ctx)); err != nil {
			return err
		}
		fmt.Println("ready")
		for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
			time.Sleep(time.Millisecond)
		}
		if c.Rank() == 0 {
			err = write() // whether it arrives does not matter
		} else {
			time.Sleep(lossyLater)
			err = conn.Close()
			stays, _ := time.ParseDuration(filepath.Base(file))
			time.Sleep(stays)
		}
		return errors.Join(err, c.Barrier(ctx))
	})
}
