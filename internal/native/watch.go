package native

import (
	"math"

	"github.com/mscclgo/mscclgo"
)

// statusAlign is the alignment of a devicecode.GroupStatus: kernels write its notes in stores of
// 16 bytes.
const statusAlign = 16

// CheckWatch returns an error if waits of kernels cannot use this status and time-out of a
// devicecode.Watch. They compare the time-out as a signed number.
func CheckWatch(op string, status, timeout uint64) error {
	switch {
	case status%statusAlign != 0:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Watch.Status is %#x, which is no multiple of %d", status, statusAlign)
	case timeout > math.MaxInt64:
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "Watch.Timeout is %d, a negative time or more than %d nanoseconds", timeout, int64(math.MaxInt64))
	}
	return nil
}
