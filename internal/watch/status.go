// Package watch finds out which rank is to blame. A rank tells facts: of something that failed in a [Fact], and of
// what it does and waits for in a [Status]. [Judge] says why a group does not progress, from all ranks' statuses; [Origin]
// and the methods of Fact say who is behind a failure. These are pure functions, which know no rank but by what it
// tells, and believe nothing in that beyond what they print. The launcher of the processes hears of it by a [Report].
package watch

import (
	"cmp"
	"errors"
	"time"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// Status is what a rank reports about itself.
type Status struct {
	Process   uint32 // its process id, 0 if unknown
	Namespace uint64 // of that id: the inode of the process's pid namespace
	Host      string `wire:"32,text"` // the machine's name
	Device    string `wire:"32,text"`

	Call       uint64 // the number of its last call, 0 before the first
	CallDigest uint64 // of all its calls
	CallText   string `wire:"120,text"` // the description of the last

	// Serving is for how long its proxy has been in Go with one trigger, and 0 if it is
	// not, or for less than a moment. Trigger is that trigger's kind.
	Serving time.Duration
	Trigger uint8

	// Exchange is the number of its last exchange, a call on the host that all ranks make.
	// Exchanging is how long that has lasted, 0 if it is done. An exchange whose deadline has
	// passed is not done, and ExchangeEnded is set. Closes is set if the rank closes the group by it.
	Exchange      uint64
	Exchanging    time.Duration
	ExchangeEnded bool
	Closes        bool

	// Busy names what its host does for its device, if that may last: for example
	// "compiles slow.cu", or "". BusyFor is how long it has lasted. Compiles is set if the host compiles.
	Busy     string `wire:"32,text"`
	BusyFor  time.Duration
	Compiles bool

	// Waits has the waits of its kernels, the most telling first. Its waits in other groups
	// follow, by kernels and in exchanges.
	Waits []Wait `wire:"12"`

	// Launches begins with the first and the last launch of each stream that are not known to
	// have ended. The last launch of each kernel that has ended follows, and earlier ones, by
	// which grids are compared.
	Launches []Launch `wire:"10"`

	Still Still
}

// Limits of a status, as its tags have them. Longer lists and texts are cut when it is encoded.
const (
	MaxWaits    = 12
	MaxLaunches = 10
	MaxName     = 32
	MaxKernel   = 64
	MaxText     = 120
	MaxThreads  = 6
	// MaxBytes is the most bytes of an encoded status.
	MaxBytes = 3200
)

// Kind is what a wait is for.
type Kind uint8

// The kinds of a wait.
const (
	Signal   Kind = iota // a signal or packets of a channel
	Barrier              // a barrier or packets of the group
	Host                 // a barrier or packets of the ranks of a host
	Ring                 // this rank's own host, to serve triggers
	Exchange             // an exchange on the host; of no kernel
	Room                 // a peer to take what the kernel's host has for it
	Message              // the other half of a send or receive
	Pair                 // a call of two ranks on the host, called Name; of no kernel
	Link                 // a peer's host to acknowledge what this one has sent it again; of no kernel
	kinds
)

// Wait is a wait of a kernel.
type Wait struct {
	Kind    Kind
	Channel uint32 // the number of a Signal's channel, which its rank gave it
	Name    string `wire:"32,text"` // of that channel, or "", or of a Pair's call
	Peer    int    `wire:"signed"`  // the rank that is waited for
	Block   int    // of the kernel
	Number  uint64 // of the signal among the channel's, from 1, or 0
	For     time.Duration
	Ended   bool // its deadline has passed

	Where   Where // the group in which the rank waits
	Outside bool  // the peer is not of the group of the report, and Peer is its number in the outer group
	Index   int   // of a Signal's channel among those to the peer: where blocks have channels of their own, the block's number
}

// Where is the group of a wait, as seen from the group in which it is reported.
type Where uint8

// The groups of a wait. The outer group is that from which all others came by being split, perhaps
// more than once.
const (
	Here      Where = iota // this one
	Outer                  // the outer group of this one
	Part                   // one that this one, or a part of it, was split into
	Elsewhere              // another one that came of the outer group
	wheres
)

// Launch is a launch of a kernel or a graph.
type Launch struct {
	Stream          int    // of the rank's
	Number          uint64 // among the stream's launches, from 1
	Kernel          string `wire:"64,text"` // or what graph it is
	Group           Group  // whose it is
	Nth             uint64 // launch of that on the rank in its group, from 1
	Blocks, Threads uint32 // of the grid, and of a block; of a graph its kernels', or 0 if they differ
	Hash            uint32 // of the arguments
	Ended           bool   // as far as is known
}

// Group is the group of a launch. What a rank has launched in one group proves nothing in another.
type Group uint8

// The groups of a launch.
const (
	UnknownGroup Group = iota // this one or another
	ThisGroup                 // this one, of which it was given handles
	NoGroup                   // given no handles that are known, on a device that has had no other group
	OtherGroup
	groups
)

var statuses = wire.For[Status]()

// Encode returns the encoded status, which has at most MaxBytes bytes.
func (s *Status) Encode() []byte {
	if more := len(s.Still.Threads) - MaxThreads; more > 0 {
		cut := *s
		cut.Still.Threads, cut.Still.More = s.Still.Threads[:MaxThreads], s.Still.More+uint32(more)
		s = &cut
	}
	return statuses.Marshal(s)
}

// Decode decodes a status. Texts have no character but printable ASCII.
func Decode(b []byte) (*Status, error) {
	s, err := statuses.Unmarshal(b)
	for _, w := range s.Waits {
		err = cmp.Or(err, w.check())
	}
	for _, l := range s.Launches {
		if l.Group >= groups {
			err = cmp.Or(err, errors.New("it has a launch of no group"))
		}
	}
	for _, t := range s.Still.Threads {
		if t.At >= places {
			err = cmp.Or(err, errors.New("it has threads at no place"))
		}
		err = cmp.Or(err, t.Wait.check())
	}
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// check returns an error unless the wait is of a kind and in a group.
func (w *Wait) check() error {
	if w.Kind >= kinds || w.Where >= wheres {
		return errors.New("it has a wait of no kind, or in no group")
	}
	return nil
}

func clip(text string, limit int) string { return text[:min(len(text), limit)] }
