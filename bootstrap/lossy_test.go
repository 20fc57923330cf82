package bootstrap_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/netlab"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

// lossyEnv makes a rank one of TestHostsLosePackets; its value is a file that appears once the
// network loses packets.
const lossyEnv = "BOOTSTRAP_TEST_LOSSY"

// TestHostsLosePackets has rank 1 leave while the network loses its last message and its goodbye, or
// why it gives up. Of rank 0, which asks for signs of life, something comes before TCP sends them again.
func TestHostsLosePackets(t *testing.T) {
	for mode, says := range map[string]string{"leaves": "received the last, <nil>", "aborts": "this is why"} {
		t.Run(mode, func(t *testing.T) { losePackets(t, mode, says) })
	}
}

func losePackets(t *testing.T, mode, says string) {
	file := filepath.Join(t.TempDir(), mode)
	s, lab := testproc.New(t), netlab.New(t, 2, netlab.Options{})
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all []*testproc.Process
	for rank, p := range testproc.Places(1, 1) {
		all = append(all, s.Run(lab.Hosts[rank].Command(t.Context(), program), append(append(lab.Env(), p.Env...), lossyEnv+"="+file)))
	}
	for _, p := range all {
		p.Says("ready")
	}
	lab.Hosts[1].Mute()
	time.Sleep(lossyLater)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(lossyTime)
	lab.Hosts[1].Unmute()
	for _, p := range all {
		p.End(0)
	}
	if got := all[0].Stdout.String(); !strings.Contains(got, says) {
		t.Errorf("rank 0 says %q, not %q", got, says)
	}
}

// Rank 1 is gone two seconds after it leaves if it does not wait for rank 0's host, and TCP sends
// again what it said three seconds after: by then it has sent again what rank 0 has asked before.
const (
	lossyLater = 600 * time.Millisecond
	lossyTime  = 2200 * time.Millisecond
)

func lossyRank(ctx context.Context, o bootstrap.Options, file string) error {
	const tag = 7
	if o.Rank == 1 {
		o.HeartbeatTimeout = -1 // it asks nothing, which would be sent again before its message
	}
	b, err := bootstrap.Connect(ctx, o)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Barrier(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	if b.Rank() == 0 {
		got, err := b.Recv(ctx, 1, tag)
		fmt.Printf("received %s, %v\n", got, err)
		return nil
	}
	for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
		time.Sleep(time.Millisecond)
	}
	if filepath.Base(file) == "aborts" {
		b.Abort(errors.New("this is why"))
		return nil
	}
	return b.Send(ctx, 0, tag, []byte("the last"))
}
