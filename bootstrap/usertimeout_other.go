//go:build !linux

package bootstrap

import (
	"net"
	"time"
)

// setUserTimeout has an effect on Linux alone; elsewhere the kernel's own limit
// holds for data that stays unacknowledged.
func setUserTimeout(*net.TCPConn, time.Duration) {}
