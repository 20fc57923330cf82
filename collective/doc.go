// Package collective runs tuned collectives among the ranks of a communicator.
//
// A [Runner] belongs to one rank. There are two ways to use it. [Runner.AllReduce] and
// the methods like it take any buffers of the communicator's device and need no
// preparation:
//
//	err := runner.AllReduce(stream, out, in, count, collective.F16, collective.Sum)
//
// For buffers that are used again and again, [Runner.Share] makes them known to all ranks,
// [Runner.Prepare] makes a [Call] on them an [Operation], and [Operation.Launch] queues
// that. Then peers read and write the buffers themselves, which saves the copies that a
// large call on any buffer needs. Small calls are equally fast both ways. Both take the
// same algorithms, which a [Tuning] chooses by size.
//
// # Results
//
// A reduction adds the elements in the order of the ranks, floats of 8 and 16 bits in float32, and
// rounds once, at the end. So its bits are the same on all ranks, in all-reduces, reduce-scatters and
// reductions to a root alike. They do not depend on the size, the grid, the alignment, the place or
// the algorithm. The exceptions are algorithms that pass sums on. ring, hierRing and
// hierTree add in an order that depends on where an element lies; ring rounds at each step. hier,
// hierRing and hierTree, for several hosts, add up each host's ranks first and then the hosts' sums.
// They round sums of floats of 16 bits, but not averages, to send them to other hosts.
//
// # Order
//
// All ranks make the same calls in the same order. The calls of a communicator, of all its
// runners, are done in the order in which they are made, whatever streams they are made
// on: a call on another stream than the one before waits for it. Calls may be captured; the
// graph takes its place in the order at each launch. Calls that differ among ranks are
// found and fail the group.
//
// A [Group] of sends and receives is launched only by ranks that have messages, once all ranks
// have called [Runner.LoadGroups].
//
// The calls of several communicators, such as the parts of communicator.Communicator.Split, have no order
// among them: on several streams their kernels run at the same time. Then the device needs room for the
// blocks of all of them, since another rank's kernel may wait for one that has no room: Options.MaxBlocks
// bounds each kernel. On one stream, in the same order on all ranks, they need no more room than one.
//
// Methods that are marked collective are called by all ranks, in the same order and with
// arguments that fit, as the methods of package communicator.
//
// # After a failure
//
// The ranks that survive a failure go on with their runners in another group, with or without new
// ranks. They call [communicator.Communicator.Reform], [Runner.Reform], [Memory.Reform] and
// [Operation.Reform] where a newcomer calls [communicator.New], [New], [Runner.Share] and
// [Runner.Prepare]. These methods report whether captured graphs are right in the new group.
//
// # Memory
//
// A runner allocates memory when it first needs it, and Close releases it.
//
// On one host that is twice [Options.Scratch] for large calls on any buffers, an inbox of 256 MiB for large
// all-reduces, and a scratch of [communicator.Options] for packets. Groups of sends and receives take 79 MiB
// between two ranks and 89 to 118 among up to 8, together with all-to-alls with counts, and with gathers and
// scatters too large for packets. Among more, up to 256, they take at most 64 MiB, as slots are smaller.
//
// On several hosts all calls of a runner together take less than 256 MiB by default, whatever the number of
// hosts: Options.Scratch for calls on any buffers, as much for sums of other hosts, and the rest for what
// only moves data. Larger calls, and calls among more hosts, are done in more pieces. Prepared calls on other
// memory take only channels; the algorithm ring also has an inbox for each memory. If Options.Scratch
// is not 64 MiB, groups take up to twice Options.Scratch between hosts, and at least 32 KiB for each rank.
//
// # Several hosts
//
// Ranks may be on several hosts, as many on each or not: the ranks of a host reach each
// other's memory, and the proxies of package proxyservice move what goes between hosts.
// All collectives work there, and a [Group]; algorithms whose kernels reach all ranks' memory
// do not.
package collective
