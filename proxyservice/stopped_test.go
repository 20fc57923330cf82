package proxyservice_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
)

// stopTheWorld stops all goroutines, as a garbage collection does, for that long: it
// dumps the heap into a pipe that another process begins to read after that time.
func stopTheWorld(t *testing.T, long time.Duration) {
	t.Helper()
	ballast := make([]byte, 1<<20) // more than a pipe holds
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	reader := exec.Command("sh", "-c", "sleep $0; cat >/dev/null", fmt.Sprint(long.Seconds()))
	reader.Stdin = in
	if err := reader.Start(); err != nil {
		t.Skip("no shell to read a pipe with:", err)
	}
	start := time.Now()
	debug.WriteHeapDump(out.Fd())
	took := time.Since(start)
	runtime.KeepAlive(ballast)
	out.Close()
	if err := reader.Wait(); err != nil {
		t.Fatal(err)
	}
	if took < long*9/10 {
		t.Fatalf("the world was stopped for %v only", took)
	}
}

// TestServedWhileTheWorldIsStopped has two kernels put to each other over their
// hosts while no goroutine runs.
func TestServedWhileTheWorldIsStopped(t *testing.T) {
	const stopped = time.Second
	longest := func(t *testing.T, ranks [2]*rank) time.Duration {
		d := newDuo(t, ranks, 1024)
		const rounds = 1 << 20
		times := [2]*gpu.Buffer{ranks[0].alloc(t, 4*rounds), ranks[1].alloc(t, 4*rounds)}
		for i, r := range ranks {
			r.launch(t, "volley", 1, 1, d.channels[i].Handle(), uint64(1024), uint32(rounds), i == 0, times[i])
		}
		trips := func() int { return slices.Index(append(read[uint32](t, times[0], rounds), 0), 0) }
		eventually(t, "the kernels have begun", func() bool { return trips() >= 100 })
		stopTheWorld(t, stopped)
		before := trips()
		eventually(t, "the trip that was stopped ends", func() bool { return trips() > before })
		for _, r := range ranks {
			r.abort()
		}
		for _, r := range ranks {
			r.wait(t)
		}
		// The last puts may be under way still, and the buffers go before the services.
		for _, r := range ranks {
			if err := r.service.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := r.conn.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return time.Duration(slices.Max(read[uint32](t, times[0], rounds)))
	}
	t.Run("in C", func(t *testing.T) {
		ranks := newPair(t, hostOnly)
		if native.PathOf(ranks[0].conn).Queue == nil {
			t.Skip("threads in C cannot use the connection here")
		}
		if took := longest(t, ranks); took > stopped/2 {
			t.Errorf("a round trip took %v while the world was stopped for %v", took, stopped)
		}
	})
	t.Run("in Go", func(t *testing.T) { // which shows that the world was stopped
		ranks := newPair(t, hostOnly)
		if took := longest(t, inGo(t, ranks)); took < stopped/2 {
			t.Errorf("no round trip took longer than %v though the world was stopped for %v", took, stopped)
		}
	})
}
