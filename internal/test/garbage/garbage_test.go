package garbage_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/garbage"
)

func collections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumGC
}

// await waits for so many collections.
func await(t testing.TB, n uint32) {
	t.Helper()
	start := collections()
	end := time.Now().Add(time.Minute)
	for last := start; last-start < n; time.Sleep(time.Millisecond) {
		if now := collections(); now != last {
			last, end = now, time.Now().Add(time.Minute)
		}
		if time.Now().After(end) {
			t.Fatalf("the last of %d collections was a minute ago; want %d", last-start, n)
		}
	}
}

func TestMake(t *testing.T) {
	t.Run("makes", func(t *testing.T) {
		garbage.Make(t)
		await(t, 10)
	})
	before := collections()
	time.Sleep(50 * time.Millisecond)
	if n := collections() - before; n > 1 { // one may have begun
		t.Errorf("%d collections after the test's end", n)
	}
}

// BenchmarkMake measures a collection and the allocations between two. scripts/bench-rdma
// runs it as a load beside other programs.
func BenchmarkMake(b *testing.B) {
	garbage.Make(b)
	b.ResetTimer()
	await(b, uint32(b.N))
}
