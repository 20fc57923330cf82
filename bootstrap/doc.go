// Package bootstrap lets the ranks of a group find each other over TCP and
// exchange small messages, before anything faster is set up.
//
// A [UniqueID] names the group: an address and a secret. Each rank passes it to
// [Connect] with its number and the world size, or has [FromEnv] read all three
// from what torchrun, mpirun, srun, a Kubernetes indexed job or mscclgo's own
// launcher set. The [Bootstrap] that Connect returns sends and receives messages
// matched by peer and tag, and has collectives: all-gather, barrier, broadcast.
//
// # Collectives
//
// A collective is called by every rank. Calls are matched by their order on each
// rank, so goroutines of one rank that call collectives at the same time must
// agree on an order with the other ranks by other means. Send and Recv do not
// count and may be called meanwhile.
//
// If the ranks do not call the same collective, or one of them has left the group, the
// group fails. If one rank's context ends, before its call or during it, or its arguments
// are wrong, only that call fails, on all ranks: the others' calls end at once, also on
// ranks that come to it later, with an error that says which rank left the call and why.
// A rank whose part was done already may have succeeded. The group goes on, and the next
// calls match again.
//
// An ErrTimeout names the rank that is missing as its peer. Each rank that waits tells its neighbours for whom,
// so a rank far away in the tree knows it too.
//
// # Failure
//
// The group fails as a whole: when a rank calls [Bootstrap.Abort], when its
// process dies, when its host vanishes. Every rank notices, idle or not, within
// milliseconds for a process (seconds, if it dies just when the rank above it in
// the tree leaves) and after Options.HeartbeatTimeout for a host, or for a rank that is
// stopped. That holds from when a rank has
// come to the rendezvous, which tells the others if it dies before they are connected. If a
// rank dies earlier, only the process that started it knows, and may say so with
// [Rendezvous.Ended]. When the group fails,
// [Bootstrap.Done] is closed, [Bootstrap.Err] names the rank and the reason, and
// blocked calls return. [Bootstrap.Close] is the orderly way to leave, and no
// failure.
//
// # Generations
//
// A group never changes. An [Elastic] is a server at which processes meet as one group
// after the other: the survivors of a failure, with or without new ranks. Reform of package communicator
// takes kernels and memory along.
//
// # Connections
//
// The ranks form a tree in which each has one parent and at most eight children;
// collectives and news of failures travel along it. Other connections are made
// when two ranks first exchange a message. When a rank leaves, those below it
// move to the next rank above. So 64 ranks hold 63 connections, not 2016.
//
// # Messages of your own
//
// A program that can send and receive messages between its ranks by other means, as over MPI, has all of this over them: see
// [Over].
//
// # Trust
//
// Every connection begins with a handshake in which both sides prove that they
// know the group's secret. A stranger who sends noise, stays silent or replays
// an overheard handshake is refused and logged, and the group goes on. After the
// handshake traffic is neither encrypted nor signed, unless [Options].TLS is set:
// a network where strangers can alter traffic needs it.
package bootstrap
