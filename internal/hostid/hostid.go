// Package hostid identifies hosts: ranks whose hosts have the same identity can
// pass descriptors to each other, others need a network.
package hostid

import (
	"fmt"
	"os"
	"strings"

	"github.com/mscclgo/mscclgo"
)

const (
	// Env is the environment variable whose value, if not empty, replaces the
	// identity, to make several containers of a host one, or one host several.
	Env = "MSCCLGO_HOST_ID"
	// MaxSize is the most bytes that an identity has.
	MaxSize = 255
)

// Get returns the identity of the host that this process runs on: the value of
// [Env], or else the kernel's boot id with the number of the network namespace,
// beyond which the abstract sockets that pass descriptors do not reach.
//
// Errors: ErrInvalid for a value of [Env] that is too long, ErrSystem when /proc
// cannot be read.
func Get() (string, error) {
	const op = "find this host's identity"
	if id := os.Getenv(Env); id != "" {
		if len(id) > MaxSize {
			return "", mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s has %d bytes, at most %d are allowed", Env, len(id), MaxSize)
		}
		return id, nil
	}
	return Kernel()
}

// Kernel is [Get] without the environment: processes with the same identity reach
// each other over the loopback interface.
//
// Errors: ErrSystem when /proc cannot be read.
func Kernel() (string, error) {
	const op = "find this host's identity"
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, op, "set %s, or mount /proc: %w", Env, err)
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", mscclgo.Errorf(mscclgo.ErrSystem, op, "set %s, or mount /proc: %w", Env, err)
	}
	return fmt.Sprintf("%s/%s", strings.TrimSpace(string(boot)), network), nil
}
