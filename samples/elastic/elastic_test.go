package main

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testproc"
)

func TestMain(m *testing.M) { testproc.Main(m, main) }

// kind makes the processes that a test starts run main, and returns their devices' kind.
func kind(t *testing.T) (ctx context.Context, kind string) {
	t.Helper()
	t.Setenv(testproc.MainEnv, "elastic")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	kind, _, _ = strings.Cut(testdev.Name(t, 0), ":")
	return ctx, kind
}

// TestKilled kills ranks, and starts others or has a spare.
func TestKilled(t *testing.T) {
	const n, kills = 3, 4
	ctx, kind := kind(t)
	var text bytes.Buffer
	out := &together{out: &text}
	if err := lead(ctx, n, kills, kind, out); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	if got := strings.Count(text.String(), "steps was right"); got != n {
		t.Errorf("%d ranks are right, not %d:\n%s", got, n, text.String())
	}
	if !strings.Contains(text.String(), "with its graph") {
		t.Errorf("no captured graph lived on:\n%s", text.String())
	}
}

// TestStopped stops a rank until the others have gone on without it, and has it go on: it
// learns that it was left out, and comes again.
func TestStopped(t *testing.T) {
	const n = 3
	ctx, kind := kind(t)
	server := testerr.Must(bootstrap.NewElastic("127.0.0.1:0", bootstrap.ElasticOptions{Min: n - 1, Max: n, Settle: settle}))(t)
	defer server.Close()
	var text bytes.Buffer
	out := &together{out: &text}
	var ranks []*process
	for i := range n {
		p := testerr.Must(start(server.ID(), kind, i, out))(t)
		defer p.cmd.Process.Kill()
		ranks = append(ranks, p)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			out.mu.Lock()
			defer out.mu.Unlock()
			t.Fatalf("%v\n%s", err, text.String())
		}
	}
	check(await(ctx, ranks, n))
	check(ranks[1].cmd.Process.Signal(syscall.SIGSTOP))
	check(await(ctx, []*process{ranks[0], ranks[2]}, n-1))
	check(ranks[1].cmd.Process.Signal(syscall.SIGCONT))
	check(await(ctx, ranks, n))
	for _, p := range ranks {
		check(p.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, p := range ranks {
		check(<-p.ended)
	}
	if got := strings.Count(text.String(), "steps was right"); got != n {
		t.Errorf("%d ranks are right, not %d:\n%s", got, n, text.String())
	}
}
