package proxyservice

import (
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testdriver"
)

// TestClosedTogether closes a service twice at a time: neither call returns before the ring is free.
func TestClosedTogether(t *testing.T) {
	b := newBed(t, overCudaIPC)
	held := b.service.links[b.conn]
	held.mu.Lock()
	release := sync.OnceFunc(held.mu.Unlock)
	t.Cleanup(release)
	testdriver.ClosedTogether(t, b.service, release, nil)
}
