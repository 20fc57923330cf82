package blame

import (
	"errors"

	"github.com/mscclgo/mscclgo"
)

// Culprit returns the rank that is to blame for an error of the rank self: the peer that it
// waited for or lost, if err says so, and otherwise self.
func Culprit(err error, self int) int {
	var e *mscclgo.Error
	for errors.As(err, &e) {
		waited := e.Kind == mscclgo.ErrTimeout || e.Kind == mscclgo.ErrRemote
		if waited && e.Peer != mscclgo.NoRank {
			return e.Peer
		}
		err, e = e.Err, nil
	}
	return self
}
