package topology

// Network is a connection between ranks of two hosts, by RDMA or else by TCP. How long it takes
// is estimated: nothing here was measured over a real network.
type Network struct {
	RDMA      bool
	Bandwidth float64 // of the NICs, in GB/s each way, by their line rates; above 0
}

const (
	rdmaLatency, tcpLatency = 6, 30 // us
	rdmaShare, tcpShare     = 0.92, 0.7
	// tcpStream is about what one processor sends over one socket, in GB/s.
	tcpStream = 5
)

// Latency returns the time from a trigger in a kernel to the end of the peer's wait for the signal
// that follows a small put, in us.
func (n Network) Latency() float64 {
	if n.RDMA {
		return rdmaLatency
	}
	return tcpLatency
}

// Share returns which part of the bandwidth carries data.
func (n Network) Share() float64 {
	if n.RDMA {
		return rdmaShare
	}
	return tcpShare
}

// Time returns how long a put of so many bytes and its signal take over one connection, in us. Of
// TCP a connection carries no more than a processor sends over a socket.
func (n Network) Time(bytes float64) float64 {
	carries := n.Bandwidth * n.Share()
	if !n.RDMA {
		carries = min(carries, tcpStream)
	}
	return n.Latency() + bytes/(carries*1000)
}

// TCPIsFaster reports whether a put of 1 MiB and its signal take less time over TCP than by RDMA, by
// the bandwidths of the NICs in GB/s. It is false where one is unknown, which is 0. Of larger puts
// bandwidth alone would decide, and of small ones RDMA's latency.
func TCPIsFaster(rdma, tcp float64) bool {
	const bytes = 1 << 20
	return rdma > 0 && tcp > 0 &&
		Network{Bandwidth: tcp}.Time(bytes) < Network{RDMA: true, Bandwidth: rdma}.Time(bytes)
}
