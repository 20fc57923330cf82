// Package collective runs tuned collectives among the ranks of a communicator.
//
// A [Runner] is one rank's. It shares memory with the other ranks ([Runner.Share]),
// and prepares a [Call] on such memory ([Runner.Prepare]) to an [Operation], which a
// stream then runs as often as wanted.
//
// Methods that are marked collective are called by all ranks, in the same order and
// with arguments that fit.
package collective
