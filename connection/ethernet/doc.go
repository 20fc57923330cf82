// Package ethernet connects two ranks that have nothing but TCP between them.
// Writes are one-sided all the same: the receiving program does nothing.
//
// A [Transport] is one rank's end: it listens, and it is the registry's carrier,
// so that what a peer may write to is what the registry's memories hold. A
// connection is a control socket, on which acknowledgements go, and one or more
// data sockets, on which frames go. Every write and update is an operation with
// a number; a frame carries its operation's number, a memory's number, an offset
// and a length, never an address, and is checked against what is registered
// before a byte of it is applied. The receiver applies operations in order,
// whichever sockets their frames came on.
//
// Device memory goes through pinned staging memory of a fixed size at both ends,
// in chunks, the next being copied while one is sent. Memory that the host reaches
// (pinned, or an emulated device's) is sent from and received into where it lies.
//
// Both ends of every socket prove that they know the group's secret. What follows
// is clear text unless [Options].TLS is set: then the proof binds to the TLS
// session, so that nobody can stand in the middle.
package ethernet
