// Package handshake lets two ends of a connection prove to each other that they
// belong to one group, before anything else is sent. [Member] is one end: its
// Client and Server methods prove over a connection, plain or under TLS 1.3, and
// Dial connects first. [Acceptor] runs the handshakes of listening sockets and
// keeps strangers within limits.
//
// # Messages
//
// Four messages, each of a size that both sides know beforehand, so that they
// can be read off a stream or as packets:
//
//	dialer → acceptor   hello: magic, versions, mode, nonce
//	acceptor → dialer   hello
//	dialer → acceptor   claim, proof
//	acceptor → dialer   verdict, proof
//
// The claim is who dials whom, and for what; its meaning is up to the caller. HKDF
// (RFC 5869) derives a key for each direction from the group's secret, with both
// hellos as the salt and with the purpose, the group and the TLS session's
// exported key (RFC 8446, 7.5) as the context. A proof is HMAC-SHA256 under the
// prover's key: the dialer's over the claim, the acceptor's over the claim and
// the verdict.
//
// A proof is therefore bound to the purpose, the group, the two nonces and the
// TLS session: it is worthless for another purpose, a second time, in the other
// direction, or relayed from one TLS session to another.
//
// # Trust
//
// The side that proves first lets the other test guesses of the secret against the
// proof, as many as it likes. That cannot matter for a random secret, and cannot
// be avoided for a weak one without a password-authenticated key exchange. It is
// kept as small as it can be:
//
//   - An acceptor, which anybody can reach, proves nothing to a dialer that has
//     not proved itself. A stranger who dials receives a random nonce, and only
//     after a hello of this library. Nothing that depends on the secret, the
//     group's number included, is in a hello.
//   - The dialer proves first. So a stranger who can only dial has one guess for
//     each attempt. For more, a stranger must listen at the address that a member
//     dials, or on the path.
//   - Under TLS a listener on the path sees no proof at all. The certificates are
//     self-signed and prove nothing; the proofs are bound to the session, so that
//     somebody between two sessions has a proof that fits neither.
//   - Both nonces are random, and each side contributes one: a table of guesses
//     computed beforehand fits no handshake.
//
// A secret made from text that people or schedulers choose may be weak. Nothing here
// makes a guess expensive: whoever turns such text into the 32 bytes of
// [Options.Secret] stretches it, as package bootstrap does, once in a process and not
// once for each connection. With its 600,000 rounds of PBKDF2 a core makes fewer
// than ten guesses in a second, in place of a million.
package handshake
