package watch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
)

// Call is a call that all ranks make in the same order, as one of them made it.
type Call struct {
	Rank   int    `wire:"-"`
	Number uint64 // 0 before the first call
	Digest uint64 // of all calls up to this one
	Text   string `wire:"120,text"`
}

// note is what a board has of a call: its number and its digest, 32 bits of each.
func (c *Call) note() uint64 { return c.Number<<32 | c.Digest&0xffffffff }

// Calls are the calls of a rank. It compares each with the calls of the same number of two ranks of its host, without
// waiting for these. If calls differ, two ranks that are compared with each other differ, and the later one finds it at
// its call. A digest covers all calls before, so that a rank that was too far behind to be compared finds a difference
// once it has caught up.
type Calls struct {
	board   *Board
	members []int // the ranks of the board, by index
	index   int   // of this rank
	beside  []int // the indices of the ranks that it is compared with

	mu     sync.Mutex
	closed bool
	last   Call
	ahead  []Call // of other hosts' ranks, one of each, which this rank has not made yet
}

// NewCalls returns the calls of a rank, one of the members of a board.
func NewCalls(rank int, members []int, board *Board) *Calls {
	n, index := len(members), slices.Index(members, rank)
	c := &Calls{board: board, members: members, index: index, last: Call{Rank: rank}}
	for _, i := range []int{(index + 1) % n, (index + n - 1) % n} {
		if i != index && !slices.Contains(c.beside, i) {
			c.beside = append(c.beside, i)
		}
	}
	return c
}

// Make notes this rank's next call, and returns an error if others have made another one. open is false after Refuse.
func (c *Calls) Make(op, text string) (err error, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	c.last.Number++
	c.last.Digest, c.last.Text = extend(c.last.Digest, text), text
	c.board.post(c.index, &c.last)
	for _, i := range c.beside {
		if c.board.differs(i, &c.last) {
			theirs := Call{Rank: c.members[i], Number: c.last.Number}
			theirs.Text, _ = c.board.text(i, theirs.Number)
			return c.differ(op, theirs), true
		}
	}
	if len(c.ahead) > 0 {
		return c.reached(op), true
	}
	return nil, true
}

// Hear compares another rank's last call with this rank's. If this rank has not made that call yet, it is compared when it
// does: such a call is not replaced by a later one, which this rank, if the other is always ahead, would never reach.
func (c *Calls) Hear(op string, other Call) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.board == nil || other.Number == 0 || slices.ContainsFunc(c.ahead, func(a Call) bool { return a.Rank == other.Rank }) {
		return nil
	}
	c.ahead = append(c.ahead, other)
	return c.reached(op)
}

// reached compares the calls that were ahead, and that this rank has now made. The caller holds mu.
func (c *Calls) reached(op string) (err error) {
	c.ahead = slices.DeleteFunc(c.ahead, func(other Call) bool {
		if other.Number > c.last.Number {
			return false
		}
		if err == nil && c.board.differs(c.index, &other) {
			err = c.differ(op, other)
		}
		return true
	})
	return err
}

// differ returns the error of another rank's call that differs from this rank's of that number.
func (c *Calls) differ(op string, theirs Call) error {
	ours, _ := c.board.text(c.index, theirs.Number)
	which := fmt.Sprintf("call %d", theirs.Number)
	if ours == theirs.Text || theirs.Text == "" || ours == "" {
		which += " or one before it"
	}
	const unknown = "a call that differs"
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s: rank %d makes %s; this rank %s; all ranks must make the same calls in the same order",
		which, theirs.Rank, cmp.Or(theirs.Text, unknown), cmp.Or(ours, unknown)).At(c.last.Rank, theirs.Rank)
}

// oddPatience bounds how long Odd waits.
const oddPatience = 100 * time.Millisecond

// Odd returns the one rank of this host whose last call is unlike the calls of the others, or NoRank if that cannot be
// told. It waits a moment for ranks that have not made the call.
func (c *Calls) Odd() int {
	number := c.Last().Number
	for end := time.Now().Add(oddPatience); ; time.Sleep(time.Millisecond) {
		texts, known := c.texts(number)
		if known < len(c.members) && !time.Now().After(end) {
			continue
		}
		if odd, sure := OddCall(texts); sure {
			return c.members[odd]
		}
		return mscclgo.NoRank
	}
}

// texts returns what the ranks of this host call, by index, and of how many that is known.
func (c *Calls) texts(number uint64) (texts []string, known int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	texts = make([]string, len(c.members))
	if c.closed || c.board == nil {
		return texts, len(texts)
	}
	for i := range texts {
		var ok bool
		if texts[i], ok = c.board.text(i, number); ok {
			known++
		}
	}
	return texts, known
}

// Last returns this rank's last call, also after Close, and of nil.
func (c *Calls) Last() Call {
	if c == nil {
		return Call{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Refuse has this rank's later calls be refused. Other ranks' calls are still compared.
func (c *Calls) Refuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Close has the board be used no more. It is called after Refuse, and does nothing on nil.
func (c *Calls) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.board = nil
}

// The multipliers of the digest are the first 64 bits of the fractions of the square roots of 2 and 3, both odd.
const (
	root2 = 0x6a09e667f3bcc909
	root3 = 0xbb67ae8584caa73b
)

// extend returns the digest of the calls of digest before and one more call.
func extend(before uint64, text string) uint64 {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	h := fold(before^root2, root3)
	for ; len(b) >= 8; b = b[8:] {
		h = fold(h^binary.LittleEndian.Uint64(b), root2)
	}
	rest := uint64(len(text)) << 56
	for i, c := range b {
		rest |= uint64(c) << (8 * i)
	}
	return fold(h^rest^root3, root2)
}

// fold mixes two words into one.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}
