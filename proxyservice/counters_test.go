package proxyservice_test

import (
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

func TestCounts(t *testing.T) {
	ranks := newPair(t, proxyservice.ServiceOptions{Direct: channel.HostOnly, Options: proxyservice.Options{Count: true}})
	d := newDuo(t, ranks, 4096)
	for range 3 {
		ranks[0].must(t, d.channels[0], putWithSignal, 0, 0, 1000)
		ranks[0].must(t, d.channels[0], putWithSignalAndFlush, 0, 0, 96)
	}
	s := ranks[0].service.Snapshot()
	const putSignal = layout.PortPut | layout.PortSignal
	if s.Triggers[putSignal] != 3 || s.Triggers[putSignal|layout.PortFlush] != 3 || len(s.Triggers) != 2 {
		t.Errorf("triggers by kind: %v", s.Triggers)
	}
	if s.Bytes[registeredmem.CudaIPC] != 3*1096 || len(s.Bytes) != 1 {
		t.Errorf("bytes by transport: %v", s.Bytes)
	}
	if s.Flushes.Count != 3 || s.Flushes.Sum <= 0 || s.Flushes.Sum > time.Minute {
		t.Errorf("%d flushes took %v", s.Flushes.Count, s.Flushes.Sum)
	}
	last := uint64(0)
	for _, b := range s.Flushes.Buckets {
		if b.Count < last || b.Count > s.Flushes.Count {
			t.Errorf("up to %v there were %d of %d flushes, and %d up to the limit before", b.Limit, b.Count, s.Flushes.Count, last)
		}
		last = b.Count
	}
	if s.Waiting != 0 || s.RingSize != 512 || s.Failures != 0 || s.Idle <= 0 {
		t.Errorf("%+v", s)
	}
	if ranks[1].service.Snapshot().Triggers[putSignal] != 0 {
		t.Error("the peer counted what it did not serve")
	}
}
