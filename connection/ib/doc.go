// Package ib connects ranks over InfiniBand or RoCE, by reliable connected queue
// pairs. A write and a store are RDMA writes, and a read is RDMA reads. An update and an addition
// are an RDMA fetch-and-add, which for an update follows the writes before it. An exchange is
// compare-and-swaps. A flush waits for reads behind all of them.
//
// # Devices
//
// A rank uses the NIC that serves its GPU, and a second one where that is as near and no other
// GPU needs it ([topology.Machine.NICsFor]), or the NICs that [Options] name. It has a queue pair
// on each, by default. Two ranks connect the queue pairs that both have, the first of one to the
// first of the other, and so on: a rank with two NICs and one with one use the first of each. The
// networks of the NICs are not compared. If the second NIC's network does not lead to the peers, large
// writes fail with an error that says so. The remedy is to name one device.
//
// Writes of 256 KiB and more are spread over all queue pairs, and all else is on the first.
//
// # Order
//
// A rank that reads an update's value must see all writes that were queued before it.
// That follows from these rules of the InfiniBand Architecture
// Specification (volume 1, chapters 9.5 and 10.8.3.3) and of PCI Express:
//
//   - The responder executes the requests of one queue pair in order: an atomic or
//     a read sees the RDMA writes before it, and follows them to memory. So updates
//     use the first queue pair, as small writes do.
//   - Queue pairs are not ordered with each other, and an acknowledged write may still
//     be on its way to memory. So when a large write is spread over several queue
//     pairs, each of the others ends its part with an RDMA read of the last byte that
//     it wrote. A read is answered only once the writes before it are in place. The
//     update is posted when these reads are complete: the specification orders a read
//     with what follows it only by a fence (10.8.3.3). A write that overlaps one
//     under way on another queue pair waits for that one too.
//   - A card's writes to a GPU and to host memory are two streams of PCI Express
//     transactions, which do not order each other. So an update of host memory behind
//     a write or an update of device memory first reads in the device memory, and is
//     posted when that read is complete. The tests check that the read is made;
//     to see what happens without it takes a card and a GPU.
//   - Kernels see a card's writes to their GPU in order if the driver says so
//     ([gpu.Info.RDMAOrdered]). Otherwise [New] refuses: the receiver's host would
//     have to flush (cuFlushGPUDirectRDMAWrites) between data and signal, and it takes
//     no part where an atomic writes the signal into the GPU's memory.
//   - Without atomics an update is a message: a write with immediate into the
//     peer's inbox, whose process applies it. The completion of its receive
//     follows the data of the writes before it to host memory; for device
//     memory there is the same read before it.
//   - A read, on the first queue pair, finds what the writes and atomics before it on
//     that queue pair have written. It waits for overlapping writes of other queue pairs and,
//     without atomics, for the messages before it. What follows a read may overtake it at the
//     responder (10.8.3.3). So updates, and writes that overlap it there or here, are posted
//     when it is complete.
//   - An addition is an atomic in the order of writes: unlike an update it waits for writes
//     of other queue pairs, and for reads, only if it overlaps them. Writes that overlap it
//     wait for its end, since only a fence would order them (10.8.3.3). An exchange
//     begins when all before it is done, and the call returns when it is.
//   - Without atomics both are messages, as updates are. Writes wait for the messages that
//     add to what they change. After an exchange the peer's process leaves the previous value
//     in its inbox, and this rank reads it there.
//   - The completion of a read goes to host memory, and may come before what was read
//     is in a device. So a mark then has a byte of it written to the peer: to fetch that byte,
//     the card reads there, behind its own writes.
//   - The acknowledgement of a write says that the peer's card has taken it, not that it
//     is in memory (9.7.5.1.2). So a mark, and with it a flush, ends with reads, and is complete
//     when they are. Each rank keeps words for these reads in its device's memory and in the
//     host's: on PCI Express a read's answer pushes all writes before it to the same device
//     ahead of it. What was written may be closed by then.
//   - Two memories may share bytes. So each memory has a place among all memory of its rank, and
//     overlaps are found by places. Peers know places shifted by a number that they do not know.
//
// Relaxed ordering is never requested.
//
// # Threads in C
//
// C posts requests, polls completions and records both (post.h), for goroutines and for threads in C
// alike, under one lock. Threads in C do not wait for it where a goroutine has it. A thread in C
// posts what a trigger asks for with one call of the driver. Some requests must follow others that
// are not done, such as the update behind a write of several queue pairs. The thread parks these
// with all that comes behind, also from goroutines, and posts them when polls have found the others
// done. It leaves to Go requests for memories whose keys Go has not found, and all requests once too
// many are parked. Go also tells why a connection has failed in C.
//
// # Closed memory
//
// A card refuses what comes for a memory that is not registered any more, and that ends the
// connection. So a rank that closes a memory tells its peers, by messages, and a call on such a
// memory is refused and sends nothing. A call that comes before the news still ends the
// connection. So may the first one: a rank is told only once it has used the connection, since
// before that its end may not be connected. Memories of one range of a buffer share a registration,
// so a card refuses it once the last of them is closed.
//
// # Addresses
//
// No address is sent to peers. Memory is registered so that a byte is addressed by its
// offset in the memory plus the memory's offset in its page.
package ib
