// Package timeline makes one trace, for ui.perfetto.dev, of what the ranks of a group have
// recorded: their events on one clock, with an arrow from each signal to the wait that it
// ended.
//
// An arrow is drawn only where the records prove which signal it was. Events that were
// dropped, because a rank's ring had no room, take their arrows with them.
package timeline

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo/internal/native"
)

// Rank is what one rank has recorded.
type Rank struct {
	Rank   int
	Size   int    // ranks of the group
	Device string // its name
	Host   string // the machine's name

	// Group is the kernels' channel number of the group, and HostGroups are the numbers for the ranks of
	// one host, which are HostRanks.
	Group      uint32
	HostGroups [2]uint32
	HostRanks  []int

	Channels map[uint32]Channel  // by their numbers on this rank
	Sites    []native.LaunchSite // of launches
	Devices  Clock               // from the device's clock to the host's
	Hosts    Clock               // from the host's clock to rank 0's
	Failure  string              // why the group failed, or ""

	KernelsDropped, HostDropped uint64 // events that are not in the rings any more

	Kernels  []native.Event `json:"-"` // of kernels and launches, by the device's clock
	HostDoes []native.Event `json:"-"` // by the host's clock
}

// Channel names a channel on both its ranks: by the number of the collective call that made
// it, and its number among that call's channels between the two ranks.
type Channel struct {
	Call  uint64
	Index int
	Name  string // or ""
}

// Encode returns the record as bytes for Decode.
func (r *Rank) Encode() ([]byte, error) {
	head, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	for _, events := range [][]native.Event{r.Kernels, r.HostDoes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(events)))
		for i := range events {
			for _, word := range words(&events[i]) {
				b = binary.LittleEndian.AppendUint64(b, word)
			}
		}
	}
	return b, nil
}

func words(e *native.Event) *[native.EventBytes / 8]uint64 {
	return (*[native.EventBytes / 8]uint64)(unsafe.Pointer(e))
}

// maxRanks bounds the size of a group.
const maxRanks = 1 << 16

// Decode decodes what another rank has encoded.
func Decode(b []byte) (*Rank, error) {
	head, b, err := cut(b, 1)
	if err != nil {
		return nil, err
	}
	r := &Rank{}
	if err := json.Unmarshal(head, r); err != nil {
		return nil, fmt.Errorf("its head is malformed: %w", err)
	}
	if r.Size < 1 || r.Size > maxRanks || r.Rank < 0 || r.Rank >= r.Size || len(r.HostRanks) > r.Size {
		return nil, fmt.Errorf("it is of rank %d of %d", r.Rank, r.Size)
	}
	for _, to := range []*[]native.Event{&r.Kernels, &r.HostDoes} {
		var events []byte
		if events, b, err = cut(b, native.EventBytes); err != nil {
			return nil, err
		}
		*to = make([]native.Event, len(events)/native.EventBytes)
		for i := range *to {
			for j := range words(&(*to)[i]) {
				words(&(*to)[i])[j] = binary.LittleEndian.Uint64(events[i*native.EventBytes+8*j:])
			}
		}
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes are left behind its end", len(b))
	}
	return r, nil
}

// cut returns a part of as many units as its first 8 bytes say, and what is behind it.
func cut(b []byte, unit uint64) (part, rest []byte, err error) {
	if len(b) < 8 {
		return nil, nil, fmt.Errorf("it ends early")
	}
	n := binary.LittleEndian.Uint64(b)
	if b = b[8:]; n > math.MaxInt32 || n*unit > uint64(len(b)) {
		return nil, nil, fmt.Errorf("it ends early")
	}
	return b[:n*unit], b[n*unit:], nil
}

// peer returns the rank that an event of a kernel names, or -1.
func (r *Rank) peer(e *native.Event) int {
	peer := int(e.Peer())
	if slices.Contains(r.HostGroups[:], e.Channel()) && r.Group != e.Channel() && groupEvent(e.Kind()) {
		if peer >= len(r.HostRanks) {
			return -1
		}
		return r.HostRanks[peer]
	}
	if peer >= r.Size {
		return -1
	}
	return peer
}

// members returns the ranks of the group that an event of a barrier is of.
func (r *Rank) members(e *native.Event) []int {
	if slices.Contains(r.HostGroups[:], e.Channel()) {
		return r.HostRanks
	}
	all := make([]int, r.Size)
	for i := range all {
		all[i] = i
	}
	return all
}

func groupEvent(k native.EventKind) bool {
	switch k {
	case native.EventBarrier, native.EventRoundSignal, native.EventRoundWait, native.EventPackets:
		return true
	}
	return false
}
