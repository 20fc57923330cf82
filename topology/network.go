package topology

// What a put and its signal take over a connection between two hosts, by RDMA or else by TCP. The numbers are
// estimates: nothing here was measured over a real network.
const (
	rdmaLatency, tcpLatency = 6, 30     // us, from a trigger in a kernel to the end of the peer's wait
	rdmaShare, tcpShare     = 0.92, 0.7 // of the bandwidth of the NICs, that carries data
	// tcpStream is about what one processor sends over one socket, in GB/s.
	tcpStream = 5
)

// TCPIsFaster reports whether a put of 1 MiB and its signal take less time over TCP than by RDMA, by
// the bandwidths of the NICs in GB/s. It is false where one is unknown, which is 0. Of larger puts
// bandwidth alone would decide, and of small ones RDMA's latency.
func TCPIsFaster(rdma, tcp float64) bool {
	const bytes = 1 << 20
	time := func(latency, carries float64) float64 { return latency + bytes/(carries*1000) }
	return rdma > 0 && tcp > 0 && time(tcpLatency, min(tcp*tcpShare, tcpStream)) < time(rdmaLatency, rdma*rdmaShare)
}
