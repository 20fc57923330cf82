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

// Resent bounds how long TCP takes to send again what the network has lost for up to 2.5 s: it does so
// after 0.2 s, or up to a second where answers have been slow, as of a busy machine, and each time after
// twice that, so that the first time after the loss comes at most a second later than twice its end. Who
// closes a connection stays so long if the other end has not acknowledged why: a socket that is closed
// answers what still comes by a reset, after which nothing is sent again.
const Resent = 6 * time.Second

// Acknowledged reports whether the other end's kernel has all that was written to conn, or will
// never have it. conn is a TCP connection, or TLS over one; of others it is true.
func Acknowledged(conn net.Conn) bool {
	tcp := tcpOf(conn)
	return tcp == nil || !unacknowledged(tcp)
}

// A Link is what is known of the network below a TCP connection, or TLS over one.
type Link struct {
	acknowledged uint64 // bytes, by the other end's kernel
	since        time.Time
}

// Look returns since when the other end's kernel has acknowledged nothing more though this end's sends again
// what it has not, or the zero time. It is called again and again.
func (l *Link) Look(conn net.Conn, now time.Time) time.Time {
	tcp := tcpOf(conn)
	if tcp == nil {
		return time.Time{}
	}
	acknowledged, resending := resent(tcp)
	switch {
	case !resending:
		l.since = time.Time{}
	case l.since.IsZero() || acknowledged != l.acknowledged:
		l.since = now
	}
	l.acknowledged = acknowledged
	return l.since
}

// tcpOf returns the TCP connection below conn, or nil.
func tcpOf(conn net.Conn) *net.TCPConn {
	for {
		over, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = over.NetConn()
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}
