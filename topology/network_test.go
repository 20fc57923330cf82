package topology

import (
	"math"
	"testing"
)

func TestNetworkTime(t *testing.T) {
	const gbps = 1.0 / 8
	for _, c := range []struct {
		rdma, tcp float64 // GB/s
		want      bool
	}{
		{100 * gbps, 100 * gbps, false},
		{400 * gbps, 400 * gbps, false},
		{25 * gbps, 25 * gbps, false},
		{10 * gbps, 25 * gbps, true},
		{2.5 * gbps, 10 * gbps, true},
		{10 * gbps, 400 * gbps, true},
		{100 * gbps, 400 * gbps, false}, // more than a socket carries
		{38.9 * gbps, 400 * gbps, true}, // 1 MiB takes 30 us and 1048576/5000 over TCP
		{39.1 * gbps, 400 * gbps, false},
		{1, 12, true}, {12, 12, false}, {0, 12, false}, {1, 0, false}, {math.NaN(), 12, false}, {1, math.NaN(), false},
	} {
		if got := TCPIsFaster(c.rdma, c.tcp); got != c.want {
			t.Errorf("TCP at %g beside RDMA at %g is faster: %v", c.tcp, c.rdma, got)
		}
	}
}
