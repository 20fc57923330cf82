package registeredmem

import (
	"fmt"
	"math/bits"
	"os"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// Transports is a set of transports.
type Transports uint32

// The transports.
const (
	// CudaIPC: memory is mapped; kernels and copy engines access it.
	CudaIPC Transports = 1 << iota
	// InfiniBand: RDMA writes and atomics, also over RoCE.
	InfiniBand
	// Ethernet: messages over TCP, which the peer's process applies.
	Ethernet
	// SHM: messages through shared memory of the host, which the peer's process applies.
	SHM

	allTransports = CudaIPC | InfiniBand | Ethernet | SHM
)

// names are the transports' names.
var names = [transportCount]string{"CudaIPC", "InfiniBand", "Ethernet", "SHM"}

// Has reports whether t contains all of other.
func (t Transports) Has(other Transports) bool { return t&other == other }

// One reports whether t is one of the constants, not a set of several or none.
func (t Transports) One() bool { return bits.OnesCount32(uint32(t)) == 1 && t&^allTransports == 0 }

// String returns the names of the transports, such as "CudaIPC+Ethernet", or "none".
// Other bits are written as a number.
func (t Transports) String() string {
	var all []string
	for i, name := range names {
		if t.Has(1 << i) {
			all = append(all, name)
		}
	}
	if other := t &^ allTransports; other != 0 {
		all = append(all, fmt.Sprintf("%#x", uint32(other)))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "+")
}

// ParseTransports returns the set of transports that text names, in the form of
// String or with commas for "+". Case does not matter.
//
// Errors: ErrInvalid for any other text, and for one that names none.
func ParseTransports(text string) (Transports, error) {
	var t Transports
fields:
	for field := range strings.SplitSeq(strings.ReplaceAll(text, ",", "+"), "+") {
		for i, name := range names {
			if strings.EqualFold(strings.TrimSpace(field), name) {
				t |= 1 << i
				continue fields
			}
		}
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "registeredmem: read transports", "%q names %q, which is none of %s", text, field, strings.Join(names[:], ", "))
	}
	return t, nil
}

// TransportsFromEnv returns the set that the environment variable
// MSCCLGO_TRANSPORTS names, in the form of [ParseTransports], or otherwise if the
// variable is empty or not set.
//
// Errors: as for ParseTransports.
func TransportsFromEnv(otherwise Transports) (Transports, error) {
	text := os.Getenv("MSCCLGO_TRANSPORTS")
	if text == "" {
		return otherwise, nil
	}
	t, err := ParseTransports(text)
	if err != nil {
		return 0, fmt.Errorf("MSCCLGO_TRANSPORTS: %w", err)
	}
	return t, nil
}

// transportCount is how many transports there are.
const transportCount = 4

// keys are the keys of a memory, by the number of the transport's bit.
type keys [transportCount]string

// of returns the place of the key of one transport.
func (k *keys) of(t Transports) *string { return &k[bits.TrailingZeros32(uint32(t))] }
