// Package watch finds out which rank is to blame. A rank tells facts: of something that failed in a [Fact], and of
// what it does and waits for in a [Status]. [Judge] says why a group does not progress, from all ranks' statuses; [Origin]
// and the methods of Fact say who is behind a failure. These are pure functions, which know no rank but by what it
// tells, and believe nothing in that beyond what they print. The launcher of the processes hears of it by a [Report].
package watch

import (
	"errors"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo/internal/wire"
)

// Status is what a rank reports about itself.
type Status struct {
	Process   uint32 // its process id, 0 if unknown
	Namespace uint64 // of that id: the inode of the process's pid namespace
	Host      string // the machine's name
	Device    string

	Call       uint64 // the number of its last call, 0 before the first
	CallDigest uint64 // of all its calls
	CallText   string // the description of the last

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
	Busy     string
	BusyFor  time.Duration
	Compiles bool

	// Waits has the waits of its kernels, the most telling first. Its waits in other groups
	// follow, by kernels and in exchanges.
	Waits []Wait

	// Launches begins with the first and the last launch of each stream that are not known to
	// have ended. The last launch of each kernel that has ended follows, and earlier ones, by
	// which grids are compared.
	Launches []Launch

	Still Still
}

// Limits of a status. Longer lists and texts are cut when it is encoded.
const (
	MaxWaits    = 12
	MaxLaunches = 10
	MaxName     = 32
	MaxKernel   = 64
	MaxText     = 120
	MaxThreads  = 6
	// MaxBytes is the most bytes of an encoded status.
	MaxBytes = 3072
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
	Name    string // of that channel, or "", or of a Pair's call
	Peer    int    // the rank that is waited for
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
	Kernel          string // or what graph it is
	Group           Group  // whose it is
	Nth             uint64 // launch of that on the rank in its group, from 1
	Blocks, Threads uint32 // of the grid, and of a block; of a graph those of its kernels, 0 if they differ
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

// Encode returns the encoded status, which has at most MaxBytes bytes.
func (s *Status) Encode() []byte {
	w := wire.NewWriter(256)
	w.U32(s.Process)
	w.U64(s.Namespace)
	w.String(clip(s.Host, MaxName))
	w.String(clip(s.Device, MaxName))
	w.U64(s.Call)
	w.U64(s.CallDigest)
	w.String(clip(s.CallText, MaxText))
	w.U64(uint64(max(s.Serving, 0)))
	w.U8(s.Trigger)
	w.U64(s.Exchange)
	w.U64(uint64(max(s.Exchanging, 0)))
	w.Bool(s.ExchangeEnded)
	w.Bool(s.Closes)
	w.String(clip(s.Busy, MaxName))
	w.U64(uint64(max(s.BusyFor, 0)))
	w.Bool(s.Compiles)
	waits := s.Waits[:min(len(s.Waits), MaxWaits)]
	w.U8(uint8(len(waits)))
	for _, wait := range waits {
		wait.encode(w)
	}
	launches := s.Launches[:min(len(s.Launches), MaxLaunches)]
	w.U8(uint8(len(launches)))
	for _, l := range launches {
		w.U16(uint16(l.Stream))
		w.U64(l.Number)
		w.String(clip(l.Kernel, MaxKernel))
		w.U8(uint8(l.Group))
		w.U64(l.Nth)
		w.U32(l.Blocks)
		w.U32(l.Threads)
		w.U32(l.Hash)
		w.Bool(l.Ended)
	}
	s.Still.encode(w)
	return w.Bytes()
}

// Decode decodes a status. Texts have no character but printable ASCII.
func Decode(b []byte) (*Status, error) {
	r := wire.NewReader(b)
	s := &Status{Process: r.U32(), Namespace: r.U64(), Host: Printable(r.String(MaxName)), Device: Printable(r.String(MaxName)), Call: r.U64(), CallDigest: r.U64(), CallText: Printable(r.String(MaxText))}
	s.Serving, s.Trigger = readDuration(r), r.U8()
	s.Exchange, s.Exchanging, s.ExchangeEnded = r.U64(), readDuration(r), r.Bool()
	s.Closes = r.Bool()
	s.Busy, s.BusyFor, s.Compiles = Printable(r.String(MaxName)), readDuration(r), r.Bool()
	n := int(r.U8())
	if n > MaxWaits {
		r.Fail(errors.New("it has too many waits"))
	}
	for range min(n, MaxWaits) {
		w := decodeWait(r)
		if r.Err() != nil {
			break
		}
		s.Waits = append(s.Waits, w)
	}
	if n = int(r.U8()); n > MaxLaunches {
		r.Fail(errors.New("it has too many launches"))
	}
	for range min(n, MaxLaunches) {
		l := Launch{Stream: int(r.U16()), Number: r.U64(), Kernel: Printable(r.String(MaxKernel)), Group: Group(r.U8()), Nth: r.U64()}
		l.Blocks, l.Threads, l.Hash, l.Ended = r.U32(), r.U32(), r.U32(), r.Bool()
		if l.Group >= groups {
			r.Fail(errors.New("it has a launch of no group"))
		}
		if r.Err() != nil {
			break
		}
		s.Launches = append(s.Launches, l)
	}
	s.Still.decode(r)
	if err := r.End(); err != nil {
		return nil, err
	}
	return s, nil
}

func (wait Wait) encode(w *wire.Writer) {
	w.U8(uint8(wait.Kind))
	w.U32(wait.Channel)
	w.String(clip(wait.Name, MaxName))
	w.U32(uint32(wait.Peer))
	w.U16(uint16(wait.Block))
	w.U64(wait.Number)
	w.U64(uint64(max(wait.For, 0)))
	w.Bool(wait.Ended)
	w.U8(uint8(wait.Where))
	w.Bool(wait.Outside)
	w.U16(uint16(wait.Index))
}

func decodeWait(r *wire.Reader) Wait {
	w := Wait{Kind: Kind(r.U8()), Channel: r.U32(), Name: Printable(r.String(MaxName)), Peer: int(int32(r.U32())), Block: int(r.U16())}
	w.Number, w.For, w.Ended = r.U64(), readDuration(r), r.Bool()
	w.Where, w.Outside, w.Index = Where(r.U8()), r.Bool(), int(r.U16())
	if w.Kind >= kinds {
		r.Fail(errors.New("it has a wait of no kind"))
	}
	if w.Where >= wheres {
		r.Fail(errors.New("it has a wait in no group"))
	}
	return w
}

// maxDuration bounds what a status can say, so that sums do not overflow.
const maxDuration = 1 << 60

func readDuration(r *wire.Reader) time.Duration { return time.Duration(min(r.U64(), maxDuration)) }

func clip(text string, limit int) string { return text[:min(len(text), limit)] }

// Printable returns the text with ? for what is not printable ASCII.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}
