// Package metrics exports to Prometheus what a proxy counts, and how the memory of shared pipes is used.
//
// The metrics of a service have the label service:
//
//	mscclgo_proxy_triggers_total{kind}         triggers served; put, get, add and the like, sums of them, or user-N
//	mscclgo_proxy_bytes_total{transport}       bytes put, got and stored
//	mscclgo_proxy_flush_seconds                histogram, from the trigger to the flush's end
//	mscclgo_proxy_ring_triggers                triggers in the ring now
//	mscclgo_proxy_ring_size                    triggers that it holds
//	mscclgo_proxy_deferred_triggers            triggers taken from it for which their peers have no room
//	mscclgo_proxy_failures_total               1 once an error has ended the service
//	mscclgo_proxy_idle_seconds_total           time without work
//
// grafana.json, beside this file, is a Grafana dashboard of them.
//
// Metrics of the memory of shared pipes (communicator.PipeOptions.Shared) have the label rank:
//
//	mscclgo_pipe_pool_bytes                    of the memory
//	mscclgo_pipe_pool_end_bytes                of it for the ends of pipes
//	mscclgo_pipe_pool_taken_bytes              that ends take
//	mscclgo_pipe_pool_lots                     pieces that long messages borrow
//	mscclgo_pipe_pool_lent_lots                that messages under way have
//	mscclgo_pipe_pool_asked_total              messages that were to borrow one
//	mscclgo_pipe_pool_refused_total            messages that found all of them lent
package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// Source is read at each scrape: a *proxyservice.Proxy or a
// *proxyservice.ProxyService with Options.Count.
type Source interface {
	Snapshot() proxyservice.Snapshot
}

// collector is a prometheus.Collector.
type collector struct {
	source                                                          Source
	triggers, bytes, flush, waiting, size, deferred, failures, idle *prometheus.Desc
}

// New returns a collector for a service of that name, to be registered with
// Prometheus. Any goroutine may use it, also after the service was closed.
func New(service string, source Source) prometheus.Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("mscclgo_proxy_"+name, help, labels, prometheus.Labels{"service": service})
	}
	return &collector{
		source:   source,
		triggers: describe("triggers_total", "Triggers served.", "kind"),
		bytes:    describe("bytes_total", "Bytes written to peers and read from them.", "transport"),
		flush:    describe("flush_seconds", "Time from a flush's trigger to its end."),
		waiting:  describe("ring_triggers", "Triggers in the ring now."),
		size:     describe("ring_size", "Triggers that the ring holds."),
		deferred: describe("deferred_triggers", "Triggers for which their peers have no room."),
		failures: describe("failures_total", "Errors that ended the service."),
		idle:     describe("idle_seconds_total", "Time without work."),
	}
}

// Describe sends the descriptions of the metrics.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.triggers, c.bytes, c.flush, c.waiting, c.size, c.deferred, c.failures, c.idle} {
		out <- d
	}
}

// Collect sends the metrics as they are now.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.source.Snapshot()
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for kind, n := range s.Triggers {
		count(c.triggers, float64(n), kindName(kind))
	}
	for transport, n := range s.Bytes {
		count(c.bytes, float64(n), transport.String())
	}
	count(c.failures, float64(s.Failures))
	count(c.idle, s.Idle.Seconds())
	out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(s.Waiting))
	out <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, float64(s.RingSize))
	out <- prometheus.MustNewConstMetric(c.deferred, prometheus.GaugeValue, float64(s.Deferred))
	buckets := map[float64]uint64{}
	for _, b := range s.Flushes.Buckets {
		buckets[b.Limit.Seconds()] = b.Count
	}
	out <- prometheus.MustNewConstHistogram(c.flush, s.Flushes.Count, s.Flushes.Sum.Seconds(), buckets)
}

// kindName returns the name of a trigger's kind.
func kindName(kind uint8) string {
	if kind >= fifo.FirstUserKind {
		return fmt.Sprintf("user-%d", kind)
	}
	var names []string
	for _, one := range []struct {
		bits uint8 // those with others before these
		name string
	}{
		{layout.PortPut, "put"}, {layout.PortAdd, "add"}, {layout.PortExchange, "exchange"}, {layout.PortSignal, "signal"},
		{layout.PortFlush, "flush"}, {layout.PortInline, "inline"}, {layout.PortGet, "get"}, {layout.PortStore, "store"},
	} {
		if kind&one.bits == one.bits {
			names = append(names, one.name)
			kind &^= one.bits
		}
	}
	if kind != 0 || len(names) == 0 {
		names = append(names, fmt.Sprintf("kind-%d", kind))
	}
	return strings.Join(names, "+")
}
