package bootstrap

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Group returns the group's number, which is no secret.
func (b *Bootstrap) Group() [groupSize]byte { return b.id.group }

// Key returns a secret that the ranks of the group share and nobody else has,
// for a purpose: each layer that proves membership uses one of its own, and none
// holds the group's. (HMAC-SHA256 of the purpose, RFC 2104.)
func (b *Bootstrap) Key(purpose string) [secretSize]byte {
	secret := b.id.secret()
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte("mscclgo key " + purpose))
	return [secretSize]byte(mac.Sum(nil))
}
