// Package cudaipc connects two ranks of one host whose devices can access each
// other's memory. A write is an asynchronous copy on a stream of the connection's own,
// and a read is a copy the other way. An update or a store is a 64-bit value that the
// same stream stores after the copies. An add or an exchange is an atomic operation of
// that stream, and a flush waits for an event in it.
package cudaipc
