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
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// stopTheWorld stops all goroutines, as a garbage collection does, for that long: it
// dumps the heap into a pipe that another process begins to read after that time. It does
// so again if that process was far ahead, as it may be on a busy machine.
func stopTheWorld(t *testing.T, long time.Duration) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		took := stopOnce(t, long)
		if took >= long*9/10 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the world was stopped for %v only", took)
		}
	}
}

// stopOnce returns for how long the world was stopped.
func stopOnce(t *testing.T, long time.Duration) time.Duration {
	t.Helper()
	ballast := make([]byte, 1<<20) // more than a pipe holds
	in, out, err := os.Pipe()
	testerr.Check(t, err)
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
	testerr.Check(t, reader.Wait())
	return took
}

// TestServedWhileTheWorldIsStopped has two kernels put to each other over their
// hosts while no goroutine runs.
func TestServedWhileTheWorldIsStopped(t *testing.T) {
	const stopped = 2 * time.Second
	// longest returns the time of the longest trip from just before the world is stopped:
	// earlier ones wait for the peer's kernel to begin.
	longest := func(t *testing.T, ranks [2]*rank) time.Duration {
		d := newDuo(t, ranks, 1024)
		const rounds = 1 << 20
		times := [2]*gpu.Buffer{ranks[0].alloc(t, 4*rounds), ranks[1].alloc(t, 4*rounds)}
		for i, r := range ranks {
			r.launch(t, "volley", 1, 1, d.channels[i].Handle(), uint64(1024), uint32(rounds), i == 0, times[i])
		}
		trips := func() int { return slices.Index(append(read[uint32](t, times[0], rounds), 0), 0) }
		eventually(t, "the kernels have begun", func() bool { return trips() >= 100 })
		first := trips()
		stopTheWorld(t, stopped)
		before := trips()
		eventually(t, "the trip that was stopped ends", func() bool { return trips() > before })
		for _, r := range ranks {
			r.abort()
		}
		// A kernel sees that in a wait that is long, as all are without a service.
		testerr.Report(t, ranks[0].service.Stop(t.Context()))
		for _, r := range ranks {
			r.wait(t)
		}
		ranks[0].start(t)
		// The last puts may be under way still, and the buffers go before the services.
		for _, r := range ranks {
			testerr.Report(t, r.service.Stop(t.Context()))
			testerr.Report(t, r.conn.Flush(t.Context()))
		}
		return time.Duration(slices.Max(read[uint32](t, times[0], rounds)[first:]))
	}
	t.Run("in C", func(t *testing.T) {
		// A busy machine may stop these threads too, though not each time.
		var took time.Duration
		for range 3 {
			ranks := newPair(t, hostOnly)
			if ranks[0].conn.Internal().Path().Queue == nil {
				t.Skip("threads in C cannot use the connection here")
			}
			if took = longest(t, ranks); took <= stopped/2 {
				return
			}
		}
		t.Errorf("a round trip took %v while the world was stopped for %v", took, stopped)
	})
	t.Run("in Go", func(t *testing.T) { // which shows that the world was stopped
		ranks := newPair(t, hostOnly)
		if took := longest(t, inGo(t, ranks)); took < stopped/2 {
			t.Errorf("no round trip took longer than %v though the world was stopped for %v", took, stopped)
		}
	})
}
