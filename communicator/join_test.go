package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/launcher"
)

// childEnv makes the test's program a rank of TestJoin, on a device of the kind
// that is its value.
const childEnv = "MSCCLGO_TEST_JOIN"

// joinChild is what a rank of TestJoin does: it joins, gathers over channels and
// leaves.
func joinChild() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := communicator.Join(ctx, communicator.Options{Device: os.Getenv(childEnv)})
	if err != nil {
		return err
	}
	if err = childGathers(ctx, c); err != nil {
		c.Abort(err)
	}
	return errors.Join(err, c.Close(), c.Close())
}

func childGathers(ctx context.Context, c *communicator.Communicator) error {
	const part = 10_000
	w, err := newWorker(ctx, c)
	if err != nil {
		return err
	}
	data := make([]byte, c.Size()*part)
	copy(data[c.Rank()*part:], bytes.Repeat([]byte{byte(c.Rank() + 1)}, part))
	local, err := gpu.Upload(c.Device(), data)
	if err != nil {
		return err
	}
	channels, err := c.MemoryChannels(ctx, local, communicator.MemoryChannelOptions{})
	if err != nil {
		return err
	}
	if err := w.run(ctx, "gather", 64, channels.Handles, c.Size(), c.Rank(), 0, part); err != nil {
		return err
	}
	if err := gathered(local, c.Size()); err != nil {
		return err
	}
	fmt.Printf("rank %d of %d on %v\n", c.Rank(), c.Size(), c.Device())
	return errors.Join(channels.Close(), w.close(), local.Close())
}

// TestJoin runs ranks in processes of their own, as a launcher starts them.
func TestJoin(t *testing.T) {
	const n = 3
	kind, _, _ := strings.Cut(testdev.Name(t, 0), ":")
	program := testerr.Must(os.Executable())(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience+10*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if _, err := launcher.Run(ctx, launcher.Options{
		Ranks: n, Program: program, Stdout: &stdout, Stderr: &stderr,
		// The variable comes before the option, which says what is not there.
		Env: []string{childEnv + "=nonsense", "MSCCLGO_DEVICE=" + kind},
	}); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	for rank := range n {
		want := fmt.Sprintf("rank %d of %d on %s\n", rank, n, testdev.Name(t, rank))
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &stdout)
		}
	}
}

func TestJoinAlone(t *testing.T) {
	for _, name := range []string{"RANK", "MSCCLGO_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"} {
		t.Setenv(name, "")
	}
	if c, err := communicator.Join(t.Context(), communicator.Options{}); err == nil {
		t.Errorf("joined %v without a launcher", c)
	}
}

// TestJoinWarns has Join tell who might join besides the ranks, before it connects.
func TestJoinWarns(t *testing.T) {
	for rank, warned := range map[string]bool{"0": true, "1": false} {
		for name, value := range map[string]string{
			"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500",
			"TORCHELASTIC_RUN_ID": "job7", "MSCCLGO_SECRET": "", "MSCCLGO_ID": "",
		} {
			t.Setenv(name, value)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var log bytes.Buffer
		if _, err := communicator.Join(ctx, communicator.Options{Device: testdev.Name(t, 0), Logger: slog.New(slog.NewTextHandler(&log, nil))}); err == nil {
			t.Error("joined a group that is not there")
		}
		if got := strings.Count(log.String(), "level=WARN msg=\"torchrun's --rdzv-id is taken for the group's secret"); got != 1 && warned || got != 0 && !warned {
			t.Errorf("%d warnings at rank %s: %s", got, rank, &log)
		}
	}
}

// aloneInEnv sets the environment of the only rank of a group.
func aloneInEnv(t *testing.T) {
	t.Helper()
	rendezvous := testerr.Must(bootstrap.NewRendezvous("127.0.0.1:0", nil))(t)
	t.Cleanup(func() { rendezvous.Close() })
	for name, value := range map[string]string{
		"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MSCCLGO_ID": rendezvous.ID().String(),
	} {
		t.Setenv(name, value)
	}
}

// TestJoinWrongOptions has Join refuse what New refuses.
func TestJoinWrongOptions(t *testing.T) {
	aloneInEnv(t)
	_, err := communicator.Join(t.Context(), communicator.Options{Device: testdev.Name(t, 0), Timeout: -1})
	failing(t, 0, err, mscclgo.ErrInvalid, "Options.Timeout is -1ns, not 0")
}
