// Package ib connects ranks over InfiniBand or RoCE, by reliable connected queue
// pairs: a write is RDMA writes, an update an RDMA fetch-and-add behind them,
// and a flush waits for the completions.
//
// # Order
//
// The promise is that who reads an update's value sees all writes that were
// queued before it. It rests on these rules of the InfiniBand Architecture
// Specification (volume 1, chapters 9.5 and 10.8.3.3) and of PCI Express:
//
//   - The responder carries out the requests of one queue pair in order: an
//     atomic or a read sees the RDMA writes before it, and follows them to
//     memory. So updates go by the first queue pair, as small writes do.
//   - Nothing orders one queue pair with another, and an acknowledged write may
//     yet be on its way to memory. So where a large write was spread over several
//     queue pairs, each of the others ends its part with an RDMA read of the last
//     byte that it wrote. A read's answer leaves only when the writes are in
//     place. The update is posted when these reads are complete: between a read and
//     what follows it the specification has no order but a fence's (10.8.3.3).
//   - A card's writes to a GPU and to host memory are two streams of PCI Express
//     transactions, which do not order each other. So an update of host memory
//     that follows a write or an update of device memory first reads a byte there,
//     and is posted when that read is complete. No test here could find that missing:
//     it takes a card and a GPU; the tests see that the read is made.
//   - Without atomics an update is a message: a write with immediate into the
//     peer's inbox, whose process carries it out. The completion of its receive
//     follows the data of the writes before it to host memory; for device
//     memory there is the same read before it.
//
// Relaxed ordering is never asked for.
//
// # Addresses
//
// None travels. Memory is registered so that a byte is named by its offset in the
// memory plus the memory's offset in its page.
package ib
