package proxyservice_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestOffsetsBeyond4GiB puts between the ends of memories larger than a 32-bit
// offset reaches, and on a GPU 1 GiB at once.
func TestOffsetsBeyond4GiB(t *testing.T) {
	ranks := newPair(t, hostOnly)
	const size, far = 5 << 30, 4<<30 + 12345
	var bufs [2]*gpu.Buffer
	for i, r := range ranks {
		var err error
		if bufs[i], err = r.dev.Alloc(size); err != nil {
			t.Skipf("no %d bytes on %v: %v", uint64(size), r.dev, err)
		}
		t.Cleanup(func() { bufs[i].Close() })
	}
	c := testerr.Must(ranks[0].service.PortChannel(ranks[0].newSemaphore(t, ranks[0].conn), ranks[0].share(t, bufs[1]), ranks[0].register(t, bufs[0])))(t)
	ranks[1].newSemaphore(t, ranks[1].conn)
	put := func(dst, src, n uint64) {
		t.Helper()
		data := bytes.Repeat([]byte{byte(n), 3, 5, 7, 11, 13, 17}, int(n)/7+1)[:n]
		part := testerr.Must(bufs[0].Slice(src, n))(t)
		testerr.Check(t, gpu.CopyIn(part, data))
		ranks[0].must(t, c, putWithSignalAndFlush, dst, src, n)
		part = testerr.Must(bufs[1].Slice(dst, n))(t)
		testcmp.Equal(t, fmt.Sprintf("%d bytes from %d to %d", n, src, dst), read[byte](t, part, int(n)), data)
	}
	put(0, far, 1001)
	put(far, 0, 1003)
	put(size-1009, far+1, 1009)
	if testdev.CUDA() {
		put(3<<30, 1<<30, 1<<30)
	}
}

// TestMemoryOfManyChannels bounds what 10,000 channels take of the host's memory.
func TestMemoryOfManyChannels(t *testing.T) {
	ranks := newPair(t, direct)
	d := newDuo(t, ranks, 1024)
	r := ranks[0]
	dst, src := r.share(t, d.receive[1]), r.register(t, d.send[0])
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const channels = 10000
	handles := make([]layout.PortChannel, 0, channels)
	for range channels {
		c := testerr.Must(r.service.PortChannel(r.newSemaphore(t, r.conn), dst, src))(t)
		handles = append(handles, c.Handle().Internal())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	took := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d channels take %d KiB", len(handles), took>>10)
	if took > 64<<20 {
		t.Errorf("%d channels take %d bytes of host memory", channels, took)
	}
	runtime.KeepAlive(handles)
}
