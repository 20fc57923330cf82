package ib

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestRegisteredTwice registers ranges of a buffer several times. Each is registered with the device once,
// peers write to it until its last memory is closed, and nothing is left then.
func TestRegisteredTwice(t *testing.T) {
	a, b := newPair(t, Options{})
	src := a.memory(t, 64, true)
	testerr.Check(t, gpu.CopyIn(src.Buffer(), bytes.Repeat([]byte{7}, 64)))
	buf := testerr.Must(b.reg.Device().AllocHost(4096))(t)
	register := func(buf *gpu.Buffer) *registeredmem.Memory {
		t.Helper()
		return testerr.Must(b.reg.Register(buf))(t)
	}
	before := objects(t)
	first := register(buf)
	once := objects(t)
	if once == before {
		t.Fatalf("a registration does not count:\n%s", once)
	}
	var more [8]*registeredmem.Memory // at a time
	var wg sync.WaitGroup
	for i := range more {
		wg.Go(func() { more[i] = register(buf) })
	}
	wg.Wait()
	if after := objects(t); after != once {
		t.Errorf("verbs objects of one memory:\n%sof many of one range:\n%s", once, after)
	}
	part := testerr.Must(buf.Slice(64, 64))(t)
	other := register(part) // of which peers must not reach more
	if b.t.registered(other.ID()).region == b.t.registered(first.ID()).region {
		t.Error("a part of a buffer is registered as the buffer is")
	}
	last := more[len(more)-1]
	errs := []error{first.Close(), other.Close()}
	for _, m := range more[:len(more)-1] {
		errs = append(errs, m.Close())
	}
	testerr.Check(t, errors.Join(errs...))
	if after := objects(t); after != once {
		t.Errorf("verbs objects of one memory:\n%sof the last of many:\n%s", once, after)
	}
	dst := a.imported(t, last)
	testerr.Check(t, a.conn.Write(dst, 4000, src, 0, 64))
	a.flush(t)
	if got := buf.Bytes()[4000:4064]; bytes.Count(got, []byte{7}) != 64 {
		t.Errorf("%v arrived", got)
	}
	testerr.Check(t, last.Close())
	if after := objects(t); after != before || len(b.t.regions) != 0 {
		t.Errorf("verbs objects:\n%sthen:\n%s%d regions are left", before, after, len(b.t.regions))
	}

	// A buffer that is closed before its memory has left its place to others.
	stale := register(buf)
	testerr.Check(t, buf.Close())
	b.t.mu.Lock()
	if r := b.t.held(placeOf(buf)); r != nil {
		t.Error("a registration of memory that is freed is used again")
	}
	b.t.mu.Unlock()
	testerr.Report(t, stale.Close())
}
