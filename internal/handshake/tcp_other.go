//go:build !linux

package handshake

import (
	"net"
	"time"
)

// setUserTimeout has an effect on Linux only; elsewhere the kernel's own limit
// holds.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// unacknowledged is known on Linux only.
func unacknowledged(*net.TCPConn) bool { return false }
