//go:build !linux

package handshake

import (
	"net"
	"time"
)

// setUserTimeout has an effect on Linux only; elsewhere the kernel's own limit
// holds.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// dialer returns what dials with a time-out.
func dialer(timeout time.Duration) *net.Dialer { return &net.Dialer{Timeout: timeout} }

// unacknowledged is known on Linux only.
func unacknowledged(*net.TCPConn) bool { return false }

// resent is known on Linux only.
func resent(*net.TCPConn) (uint64, bool) { return 0, false }
