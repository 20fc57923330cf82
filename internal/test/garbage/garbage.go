// Package garbage gives Go's collector work beside a benchmark.
package garbage

import "testing"

// Make has a goroutine allocate as fast as it can until the test ends, so that one
// collection follows the other.
func Make(t testing.TB) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var keep [1024][]*[4]int
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			part := make([]*[4]int, 256)
			for j := range part {
				part[j] = new([4]int)
			}
			keep[i%len(keep)] = part
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
}
