package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/proxyservice/metrics"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// fixed is a source that never changes.
type fixed proxyservice.Snapshot

func (f fixed) Snapshot() proxyservice.Snapshot { return proxyservice.Snapshot(f) }

func TestCollector(t *testing.T) {
	c := metrics.New("ring", fixed{
		Waiting: 3, RingSize: 512, Deferred: 7, Failures: 1, Idle: 1500 * time.Millisecond,
		Triggers: map[uint8]uint64{1: 10, 3: 20, 7: 30, 200: 40, 64: 50, 68: 60, 96: 70, 84: 80},
		Bytes:    map[registeredmem.Transports]uint64{registeredmem.CudaIPC: 4096},
		Flushes: proxyservice.FlushTimes{Count: 5, Sum: 10 * time.Microsecond, Buckets: []proxyservice.FlushBucket{
			{Limit: time.Microsecond, Count: 1}, {Limit: 2 * time.Microsecond, Count: 4},
		}},
	})
	const want = `
# HELP mscclgo_proxy_bytes_total Bytes written to peers and read from them.
# TYPE mscclgo_proxy_bytes_total counter
mscclgo_proxy_bytes_total{service="ring",transport="CudaIPC"} 4096
# HELP mscclgo_proxy_deferred_triggers Triggers for which their peers have no room.
# TYPE mscclgo_proxy_deferred_triggers gauge
mscclgo_proxy_deferred_triggers{service="ring"} 7
# HELP mscclgo_proxy_failures_total Errors that ended the service.
# TYPE mscclgo_proxy_failures_total counter
mscclgo_proxy_failures_total{service="ring"} 1
# HELP mscclgo_proxy_flush_seconds Time from a flush's trigger to its end.
# TYPE mscclgo_proxy_flush_seconds histogram
mscclgo_proxy_flush_seconds_bucket{service="ring",le="1e-06"} 1
mscclgo_proxy_flush_seconds_bucket{service="ring",le="2e-06"} 4
mscclgo_proxy_flush_seconds_bucket{service="ring",le="+Inf"} 5
mscclgo_proxy_flush_seconds_sum{service="ring"} 1e-05
mscclgo_proxy_flush_seconds_count{service="ring"} 5
# HELP mscclgo_proxy_idle_seconds_total Time without work.
# TYPE mscclgo_proxy_idle_seconds_total counter
mscclgo_proxy_idle_seconds_total{service="ring"} 1.5
# HELP mscclgo_proxy_ring_size Triggers that the ring holds.
# TYPE mscclgo_proxy_ring_size gauge
mscclgo_proxy_ring_size{service="ring"} 512
# HELP mscclgo_proxy_ring_triggers Triggers in the ring now.
# TYPE mscclgo_proxy_ring_triggers gauge
mscclgo_proxy_ring_triggers{service="ring"} 3
# HELP mscclgo_proxy_triggers_total Triggers served.
# TYPE mscclgo_proxy_triggers_total counter
mscclgo_proxy_triggers_total{kind="add",service="ring"} 70
mscclgo_proxy_triggers_total{kind="exchange+flush",service="ring"} 80
mscclgo_proxy_triggers_total{kind="flush+kind-64",service="ring"} 60
mscclgo_proxy_triggers_total{kind="kind-64",service="ring"} 50
mscclgo_proxy_triggers_total{kind="put",service="ring"} 10
mscclgo_proxy_triggers_total{kind="put+signal",service="ring"} 20
mscclgo_proxy_triggers_total{kind="put+signal+flush",service="ring"} 30
mscclgo_proxy_triggers_total{kind="user-200",service="ring"} 40
`
	testerr.Report(t, testutil.CollectAndCompare(c, strings.NewReader(want)))
}

// TestTwoServices registers services of different names with one registry.
func TestTwoServices(t *testing.T) {
	r := prometheus.NewRegistry()
	for _, name := range []string{"a", "b"} {
		testerr.Check(t, r.Register(metrics.New(name, fixed{})))
	}
	if err := r.Register(metrics.New("b", fixed{})); err == nil {
		t.Error("two services have one name")
	}
}
