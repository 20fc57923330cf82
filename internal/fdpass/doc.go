// Package fdpass answers questions between processes of one user on one host:
// the answer is a few bytes, with an open file where the server sends one, or
// with a Go value where both ends are one process.
//
// A [Server] listens on an abstract Unix socket of a random name, so that
// nothing is left in the file system; [Call] asks one question. Both check that
// the other end runs as the same user (SO_PEERCRED, unix(7)) and, by the
// handshake of internal/handshake, that it knows the group's secret, before
// anything else of it is looked at. A stranger is refused and logged, and the
// server goes on.
//
// The proofs are bound to the socket's name, so that a process in between, which
// has a socket of another name, cannot relay them. What follows on the
// connection, which only the kernel carries, needs no proof of its own: one
// packet with the request, one with the answer, and whatever the two make of it where the
// answer says that it stays ([Connect]).
package fdpass
