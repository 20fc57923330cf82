package connection

import "github.com/mscclgo/mscclgo/internal/native"

func init() {
	native.PathOf = func(conn any) *native.Path { return conn.(*Connection).path }
	native.ExplainConnection = func(conn any, f func(error) error) { conn.(*Connection).explain = f }
	native.Explained = func(conn any, err error) error {
		if explain := conn.(*Connection).explain; explain != nil {
			return explain(err)
		}
		return err
	}
	native.PathError = func(conn any, f native.Failure) error { return conn.(*Connection).nativeError(f) }
}

// nativeError returns the error of an operation that failed in C: that of the
// method which does the same.
func (c *Connection) nativeError(f native.Failure) error {
	op := map[native.Op]string{
		native.Begin:    "use the queue",
		native.Write:    "write",
		native.Read:     "read",
		native.Store:    "store",
		native.Update:   "update a word",
		native.Progress: "queue what waited",
		native.Mark:     "mark",
		native.Reach:    "reach a mark",
	}[f.Op]
	return c.wrap(op, c.native.NativeError(f))
}
