//go:build !linux

package ethernet

import (
	"net"
	"time"
)

// setUserTimeout has an effect on Linux alone; elsewhere the transport's own
// watch finds a peer that acknowledges nothing.
func setUserTimeout(*net.TCPConn, time.Duration) {}
