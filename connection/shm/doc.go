// Package shm connects two ranks of one host through shared memory of the host, where
// neither can map the other's GPU memory: GPUs without access to each other, and ranks
// in containers that see different GPUs. Writes are one-sided all the same: the receiving
// program does nothing.
//
// A [Transport] is one rank's end: it listens on an abstract Unix socket, and it is a
// [registeredmem.Registrar], so that peers may write to the registry's memories, and read
// them, and nothing else. A connection is a ring in memory of a memfd, made by the receiver and
// passed by descriptor to the sender; both map it and pin it for their devices. The sender's copy
// engine copies pieces of at most 512 KiB into the ring, and the sender publishes how many are
// there. The receiver checks each piece, has its own copy engine copy it into the registered
// memory, and publishes how many are done. That count frees their places, and a flush waits for
// it. Pieces are small so that both copies run at the same time and what is in the ring is still
// in the processor's cache; there is room for eight by default. The processor copies memory that
// the host reaches. A read is an entry with an empty place in the ring: the receiver fills it, and
// the sender copies from it. What is queued behind the read waits for that.
//
// The receiver adds to words and exchanges them. Its host does so in memory that the host reaches,
// atomic to all else that hosts do there, and its device elsewhere. The entry of an exchange has a
// place for the previous value.
//
// Nothing in the ring is trusted, though the peer may change it at any moment: counts and
// entries are read once, and what was read is checked. An entry names a memory's number, an
// offset, and a place in the ring, never an address; where the bytes of a read belong, only the
// rank that asked knows. The memory of the ring is sealed, so that its size cannot change.
//
// An end that waits spins a while and then sleeps until a packet on the socket wakes it. The other
// end sends one only if this end said that it sleeps: an idle connection costs nothing.
// The socket also reports the end of the peer's process, and carries what is rare: that a
// memory was closed, that something is refused and why, and the end of the connection.
// Neither the memory nor the socket has a name in the file system, so nothing is left of
// processes that are killed.
//
// The ranks must be of one user and share a network namespace, which abstract sockets do
// not leave: containers are started with --network host, or --network container:OTHER.
package shm
