package registeredmem

import (
	"fmt"
	"math/bits"
	"os"
	"strings"

	"github.com/mscclgo/mscclgo"
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

// names are the transports' names.
var names = [transportCount]string{"CudaIPC", "InfiniBand", "Ethernet"}

// Has says whether t holds all of other.
func (t Transports) Has(other Transports) bool { return t&other == other }

// String names the transports, such as "CudaIPC+Ethernet", or "none".
func (t Transports) String() string {
	var all []string
	for i, name := range names {
		if t.Has(1 << i) {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "+")
}

// ParseTransports gives the set that a text names, as String does or with commas
// for "+", in upper or lower case.
//
// Errors: ErrInvalid for any other text, and for one that names none.
func ParseTransports(text string) (Transports, error) {
	var t Transports
fields:
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == '+' || r == ',' }) {
		for i, name := range names {
			if strings.EqualFold(strings.TrimSpace(field), name) {
				t |= 1 << i
				continue fields
			}
		}
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "registeredmem: read transports", "%q is none of %s", field, strings.Join(names[:], ", "))
	}
	if t == 0 {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, "registeredmem: read transports", "%q names none of %s", text, strings.Join(names[:], ", "))
	}
	return t, nil
}

// TransportsFromEnv gives the set that the variable MSCCLGO_TRANSPORTS names, as
// [ParseTransports] reads it, or otherwise where the variable is empty or not set.
//
// Errors: those of ParseTransports.
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
const transportCount = 3

// keys are what a memory's transports need to reach it, by the number of the
// transport's bit.
type keys [transportCount]string

// of gives the place of the key of one transport.
func (k *keys) of(t Transports) *string { return &k[bits.TrailingZeros32(uint32(t))] }
