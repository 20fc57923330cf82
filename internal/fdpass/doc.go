// Package fdpass answers questions between processes of one user on one host:
// the answer is a few bytes, with an open file where the server gives one, or
// with a Go value where both ends are one process.
//
// A [Server] listens on an abstract Unix socket of a random name, so that
// nothing is left in the file system; [Call] asks one question. Both check that
// the other end runs as the same user (SO_PEERCRED, unix(7)) and that it knows
// the group's secret, before anything else of it is looked at. A stranger is
// refused and logged, and the server goes on.
//
// Three packets of a SOCK_SEQPACKET connection, which keeps their borders:
//
//	server → caller   greeting: magic, version, nonce
//	caller → server   request: magic, version, nonce, proof, body
//	server → caller   answer: magic, version, proof, file count, value key, body
//
// A proof is HMAC-SHA256 under the group's secret over the direction, the group,
// the socket's name and every byte of the conversation so far, its own packet
// included. The nonces, 32 random bytes of either side, make a recorded packet
// worthless, and the name keeps a socket in between from relaying.
package fdpass
