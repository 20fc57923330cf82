// Package cudaipc connects two ranks of one host whose devices reach each
// other's memory: a write is an asynchronous copy on a stream of the
// connection's own, an update a 64-bit value that the same stream stores behind
// the copies, and a flush waits for the stream to get there.
package cudaipc
