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
// A read is an operation too. The receiver answers it when all before it is done, with frames
// on the data sockets that name the operation. Only the rank that asked knows where the bytes
// belong. Until the answer has come it sends nothing behind the read but reads into other places.
// The receiver copies an answer to staging memory before it sends it, so that the memory may be
// closed while the peer takes nothing.
//
// The receiver applies additions and exchanges in their places among the operations. Its host does
// so in memory that the host reaches, atomic to all else that hosts do there, and its device
// elsewhere. An exchange is answered as a read is, with the previous value.
//
// A rank that closes a memory tells its peers, and they refuse writes to it before they send them. If
// one was on its way, or a frame is wrong, the receiver tells the peer what it refuses and why, and
// the connection ends. A rank that closes a connection tells the peer. It does not read the sockets
// any more, and keeps them until the peer's kernel has acknowledged that message.
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
