package cudaipc

import "github.com/mscclgo/mscclgo/internal/native"

// NativePath gives the connection's stream to threads in C, where the stream can
// store values itself.
func (c *conn) NativePath() *native.Path { return c.path }

// NativeError gives the error of an operation on the stream that failed in C.
func (c *conn) NativeError(f native.Failure) error {
	op := map[native.Op]string{
		native.Begin: "cudaipc: use the stream",
		native.Write: opWrite,
		native.Store: opUpdate,
		native.Mark:  opMark,
		native.Reach: opReach,
	}[f.Op]
	return c.wrap(op, native.QueueError(c.stream, f))
}
