package handshake

import (
	"net"
	"time"
)

// DefaultSilence is how long a peer may be silent by default.
const DefaultSilence = 20 * time.Second

// Watch has the kernel fail conn, if it is a TCP connection, when
// the other end acknowledges neither data nor probes for silence: its host has
// vanished without a word. Client and Server call it for their connections.
func Watch(conn net.Conn, silence time.Duration) {
	const probes = 4
	if tcp, ok := conn.(*net.TCPConn); ok {
		every := max(silence/(probes+1), time.Second) // the kernel counts in seconds
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: probes})
		setUserTimeout(tcp, silence)
	}
}
