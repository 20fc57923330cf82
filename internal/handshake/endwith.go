package handshake

import (
	"context"
	"net"
	"time"
)

// EndWith ends the reads and writes of conn when ctx ends. The function that it returns stops that, and
// reports whether it did. If it did not, conn has the deadline by then, and the caller may set another.
func EndWith(ctx context.Context, conn net.Conn) (stop func() bool) {
	ended := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		conn.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() bool {
		if undo() {
			return true
		}
		<-ended
		return false
	}
}
