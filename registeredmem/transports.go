package registeredmem

import (
	"math/bits"
	"strings"
)

// Transports is a set of ways to reach a memory.
type Transports uint32

// The transports.
const (
	// CudaIPC: the memory is mapped, kernels and copy engines reach it.
	CudaIPC Transports = 1 << iota
	// InfiniBand: RDMA writes and atomics.
	InfiniBand
	// Ethernet: messages over TCP that the peer's process applies.
	Ethernet

	allTransports = CudaIPC | InfiniBand | Ethernet
)

// Has says whether t holds all of other.
func (t Transports) Has(other Transports) bool { return t&other == other }

// String names the transports, such as "CudaIPC+Ethernet", or "none".
func (t Transports) String() string {
	var names []string
	for _, one := range []struct {
		bit  Transports
		name string
	}{{CudaIPC, "CudaIPC"}, {InfiniBand, "InfiniBand"}, {Ethernet, "Ethernet"}} {
		if t.Has(one.bit) {
			names = append(names, one.name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "+")
}

// transportCount is how many transports there are.
const transportCount = 3

// keys are what a memory's transports need to reach it, by the number of the
// transport's bit.
type keys [transportCount]string

// of gives the place of the key of one transport.
func (k *keys) of(t Transports) *string { return &k[bits.TrailingZeros32(uint32(t))] }
