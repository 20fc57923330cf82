package topology

import (
	"math"
	"testing"
)

func TestNetworkTime(t *testing.T) {
	gbps := func(rate float64) float64 { return rate / 8 }
	for _, c := range []struct {
		rdma, tcp float64 // Gbit/s
		bytes     float64
		faster    bool // RDMA is
	}{
		{100, 100, 8, true},
		{100, 100, 1 << 30, true},
		{400, 400, 1 << 20, true},
		{25, 25, 1 << 20, true},
		{10, 25, 8, true},
		{10, 25, 1 << 20, false},
		{2.5, 10, 1 << 20, false},
		{100, 400, 1 << 30, true}, // more than a socket carries
		{10, 400, 1 << 20, false},
	} {
		r := Network{RDMA: true, Bandwidth: gbps(c.rdma)}.Time(c.bytes)
		e := Network{Bandwidth: gbps(c.tcp)}.Time(c.bytes)
		if (r <= e) != c.faster || !(r > 0) || !(e > 0) {
			t.Errorf("%g bytes take %g us at %g Gbit/s of RDMA, and %g at %g of TCP", c.bytes, r, c.rdma, e, c.tcp)
		}
	}
	// A byte more costs what the bandwidth says, and nothing at all costs the latency.
	n := Network{RDMA: true, Bandwidth: 50}
	if got, want := n.Time(46e6)-n.Time(0), 1000.0; math.Abs(got-want) > 1e-6 || n.Time(0) != n.Latency() {
		t.Errorf("46 MB over 46 of 50 GB/s take %g us and nothing takes %g, not %g and %g", got, n.Time(0), want, n.Latency())
	}
	for _, c := range []struct {
		rdma, tcp float64 // GB/s
		want      bool
	}{{1, 12, true}, {12, 12, false}, {0, 12, false}, {1, 0, false}, {math.NaN(), 12, false}, {1, math.NaN(), false}} {
		if got := TCPIsFaster(c.rdma, c.tcp); got != c.want {
			t.Errorf("TCP at %g beside RDMA at %g is faster: %v", c.tcp, c.rdma, got)
		}
	}
	if got := (Network{}).Time(1); !math.IsInf(got, 1) {
		t.Errorf("a byte takes %g us over what has no bandwidth", got)
	}
}
