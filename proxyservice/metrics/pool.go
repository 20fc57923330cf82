package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mscclgo/mscclgo/channel"
)

// PoolSource is read at each scrape: a *communicator.Communicator.
type PoolSource interface {
	PipePool() (channel.PipePoolStats, error)
}

// poolCollector is a prometheus.Collector.
type poolCollector struct {
	source PoolSource
	values []poolValue
}

// poolValue is a metric of a pool.
type poolValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(s *channel.PipePoolStats) uint64
}

// NewPipePool returns a collector for the memory of a rank's shared pipes, by a name of the rank's, to
// be registered with Prometheus. A scrape copies some words from the device. Any goroutine may use it;
// once the communicator is closed it has no metrics.
func NewPipePool(rank string, source PoolSource) prometheus.Collector {
	c := &poolCollector{source: source}
	add := func(name, help string, kind prometheus.ValueType, of func(s *channel.PipePoolStats) uint64) {
		desc := prometheus.NewDesc("mscclgo_pipe_pool_"+name, help, nil, prometheus.Labels{"rank": rank})
		c.values = append(c.values, poolValue{desc, kind, of})
	}
	add("bytes", "Device memory of shared pipes.", prometheus.GaugeValue, func(s *channel.PipePoolStats) uint64 { return s.Bytes })
	add("end_bytes", "Bytes of it for the ends of pipes.", prometheus.GaugeValue, func(s *channel.PipePoolStats) uint64 { return s.ForEnds })
	add("taken_bytes", "Bytes that ends of pipes take.", prometheus.GaugeValue, func(s *channel.PipePoolStats) uint64 { return s.Taken })
	add("lots", "Lots that long messages may borrow.", prometheus.GaugeValue, func(s *channel.PipePoolStats) uint64 { return s.Lots })
	add("lent_lots", "Lots that messages under way have.", prometheus.GaugeValue, func(s *channel.PipePoolStats) uint64 { return s.Lent })
	add("asked_total", "Messages that were to borrow a lot.", prometheus.CounterValue, func(s *channel.PipePoolStats) uint64 { return s.Asked })
	add("refused_total", "Messages for which no free lot was found.", prometheus.CounterValue, func(s *channel.PipePoolStats) uint64 { return s.Refused })
	return c
}

// Describe sends the descriptions of the metrics.
func (c *poolCollector) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.values {
		out <- v.desc
	}
}

// Collect sends the metrics as they are now.
func (c *poolCollector) Collect(out chan<- prometheus.Metric) {
	s, err := c.source.PipePool()
	if err != nil {
		return
	}
	for _, v := range c.values {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, float64(v.of(&s)))
	}
}
