// Package ethernet connects two ranks over TCP. Writes are one-sided all the same: the
// receiving program does nothing.
//
// A [Transport] is one rank's end: it listens, and it is a [registeredmem.Registrar],
// so that peers may write to the registry's memories, and read them, and nothing else. A
// connection is a control socket for acknowledgements and one or more data sockets for
// frames. Every write and update is an operation with
// a number; a frame carries its operation's number, a memory's number, an offset
// and a length, never an address, and is checked against what is registered
// before a byte of it is applied. The receiver applies operations in order,
// whichever sockets their frames arrive on.
//
// A read is an operation too, which asks for bytes. The receiver answers it when all before it
// is done, with frames on the data sockets that name the operation; where they belong, only
// the rank that asked knows. Behind a read it sends nothing but reads, into other places, before
// the answer has come. What is sent as an answer was copied to staging memory first, so that the memory may be
// closed while the peer takes nothing.
//
// An addition and an exchange the receiver applies in their places among the operations, by its
// host in memory that the host reaches, which is then atomic to all else that hosts do there, and
// by its device elsewhere. An exchange is answered as a read is, with what the word was.
//
// A rank that closes a memory tells its peers, whose writes to it are refused before they
// are sent. If one was on its way, or a frame is wrong, the receiver tells the peer
// what it refuses and why, and the connection ends. One that closes a connection tells the peer,
// and keeps the sockets, which it does not read any more, until the peer's kernel has acknowledged that.
//
// Device memory goes through pinned staging memory of a fixed size at both ends,
// in chunks: while one is sent the next is copied. Memory that the host can access
// (pinned, or of an emulated device) is sent from and received into in place. The
// bytes of WriteBytes are kept in the queue.
//
// Both ends of every socket prove that they know the group's secret. What follows
// is clear text unless [Options].TLS is set. Then the proof is bound to the TLS session,
// so that nobody can stand in the middle.
package ethernet
