package watch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// callers returns ranks of a new board that have made a number of calls.
func callers(n int, number uint64) []*Calls {
	b, members := AloneBoard(n, n), make([]int, n)
	for i := range members {
		members[i] = 10 * i
	}
	all := make([]*Calls, n)
	for i := range all {
		all[i] = NewCalls(10*i, members, b.Board)
		all[i].last.Number = number
	}
	return all
}

// call makes a call and fails the test unless the error says so.
func (c *Calls) call(t *testing.T, text, want string) {
	t.Helper()
	err, open := c.Make("match", text)
	if !open || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Fatalf("rank %d, call %d, %s: %v, %v; want %q", c.last.Rank, c.last.Number, text, err, open, want)
	}
}

// TestCallsWrap has one rank follow another through the board several times, and past the number at which notes begin
// anew.
func TestCallsWrap(t *testing.T) {
	for _, from := range []uint64{0, 1<<32 - boardNotes - 3} {
		ranks := callers(2, from)
		for range 3 * boardNotes {
			ranks[0].call(t, "sum", "")
			ranks[1].call(t, "sum", "")
		}
		ranks[1].call(t, "sum", "")
		ranks[0].call(t, "max", "rank 10 makes sum; this rank max")
	}
}

// TestCallsFarAhead has one rank run far ahead, and the other differ in a call that the board has no more.
func TestCallsFarAhead(t *testing.T) {
	ranks := callers(2, 0)
	for range 2 * boardNotes {
		ranks[0].call(t, "sum", "")
	}
	for i := range boardNotes {
		text := "sum"
		if i == 5 {
			text = "max"
		}
		ranks[1].call(t, text, "")
	}
	ranks[1].call(t, "sum", "call 4097 or one before it: rank 0 makes a call that differs; this rank sum")
}

// TestCallsHear compares calls of ranks of other hosts, before and after this rank makes them.
func TestCallsHear(t *testing.T) {
	c, far := callers(1, 0)[0], callers(1, 0)[0]
	hear := func(text, want string) {
		t.Helper()
		far.call(t, text, "")
		last := far.last
		last.Rank = 7
		if err := c.Hear("match", last); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Fatalf("%v; want %q", err, want)
		}
	}
	c.call(t, "sum", "")
	hear("sum", "")
	hear("sum", "") // which this rank has not made
	hear("max", "") // not in the place of that
	c.call(t, "sum", "")
	c.call(t, "sum", "")
	hear("sum", "")
	c.call(t, "sum", "call 4 or one before it: rank 7 makes sum; this rank sum")
	c.call(t, "min", "")
	hear("max", "call 5: rank 7 makes max; this rank min")
}

// TestCallsBeside has each of several ranks compared with two others.
func TestCallsBeside(t *testing.T) {
	for n, want := range map[int]string{1: "[[]]", 2: "[[1] [0]]", 3: "[[1 2] [2 0] [0 1]]", 5: "[[1 4] [2 0] [3 1] [4 2] [0 3]]"} {
		var beside [][]int
		for _, c := range callers(n, 0) {
			beside = append(beside, c.beside)
		}
		if got := fmt.Sprint(beside); got != want {
			t.Errorf("of %d ranks: %s, want %s", n, got, want)
		}
	}
}

func TestBoardText(t *testing.T) {
	ranks := callers(2, 0)
	long := strings.Repeat("x", MaxText)
	for _, text := range []string{"a longer text", "short", long + "more", "bad\n\xff"} {
		ranks[1].Make("match", text)
	}
	got := map[uint64]string{}
	for number := range uint64(6) {
		if text, ok := ranks[0].board.text(1, number); ok {
			got[number] = text
		}
	}
	got[0], _ = ranks[0].board.text(0, 1)
	want := map[uint64]string{0: "", 1: "a longer text", 2: "short", 3: long, 4: "bad??"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("texts by number (-want +got):\n%s", diff)
	}
	for range boardTexts {
		ranks[1].Make("match", "sum")
	}
	if text, ok := ranks[0].board.text(1, 2); ok {
		t.Errorf("call 2 is still there: %q", text)
	}
}

// TestBoardHostile fills a board with noise: calls go on, and no text has anything
// that a terminal would obey.
func TestBoardHostile(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for range 50 {
		ranks := callers(2, 0)
		board := ranks[0].board
		for i := range board.calls[1].notes {
			board.calls[1].notes[i] = random.Uint64()>>40 | uint64(i)<<32
		}
		for i := range board.calls[1].texts {
			t := &board.calls[1].texts[i]
			random.Read(t.text[:])
			t.number = uint64(i)
		}
		for range 100 {
			err, _ := ranks[0].Make("match", "sum")
			for _, r := range fmt.Sprint(err) {
				if r < ' ' || r > '~' {
					t.Fatalf("the text has %q", r)
				}
			}
		}
	}
}

// TestExtend looks for digests that are alike and must not be.
func TestExtend(t *testing.T) {
	seen := map[uint64]string{}
	add := func(digest uint64, name string) {
		if other, ok := seen[digest]; ok {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[digest] = name
	}
	var text [40]byte
	for length := range len(text) {
		add(extend(0, string(text[:length])), "zeros")
		add(extend(1, string(text[:length])), "zeros after one")
		if length >= 2 {
			for bit := range 8 * length {
				changed := text
				changed[bit/8] ^= 1 << (bit % 8)
				add(extend(0, string(changed[:length])), "a bit")
			}
		}
	}
	add(extend(extend(0, "sum"), "max"), "sum, max")
	add(extend(extend(0, "max"), "sum"), "max, sum")
	for i := range uint64(10_000) {
		add(extend(0, "all-reduce "+string(binary.LittleEndian.AppendUint64(nil, i))), "a number")
	}
}

// TestOpenBoard refuses what is no board's file.
func TestOpenBoard(t *testing.T) {
	file := func(size int64, seals int) *os.File {
		fd := testerr.Must(unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING))(t)
		f := os.NewFile(uintptr(fd), "test")
		t.Cleanup(func() { f.Close() })
		testerr.Check(t, f.Truncate(size))
		testerr.Must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals))(t)
		return f
	}
	right := int64(boardBytes(3, 5))
	for name, f := range map[string]*os.File{
		"not sealed": file(right, 0),
		"too small":  file(right-1, boardSeals),
		"too large":  file(right+1, boardSeals),
		"no board":   file(right, boardSeals),
		"none":       nil,
	} {
		if s, err := OpenBoard(f, 3, 5); err == nil {
			t.Errorf("%s: opened", name)
			s.Close()
		}
	}
	made := testerr.Must(CreateBoard(3, 5, 1))(t)
	defer made.Close()
	s := testerr.Must(OpenBoard(made.File, 3, 5))(t)
	testerr.Report(t, s.Close())
}

func TestBoardStatus(t *testing.T) {
	b := AloneBoard(1, 3)
	if got := b.Reported(2); got != nil {
		t.Errorf("before: %q", got)
	}
	for _, n := range []int{1, 7, 8, 9, MaxBytes} {
		want := bytes.Repeat([]byte{'x'}, n)
		turn := b.TurnOf(2)
		b.Report(2, want)
		testcmp.Equal(t, fmt.Sprintf("the status of %d bytes", n), b.Reported(2), want)
		if b.TurnOf(2) == turn {
			t.Errorf("%d bytes: the turn stays %d", n, turn)
		}
	}
	p := &b.pulses[2]
	p.statuses[(p.turn+1)%2] = boardStatus{length: 3} // of one that stopped while it wrote
	if got := b.Reported(2); len(got) != MaxBytes || got[0] != 'x' {
		t.Errorf("while it is written: %d bytes", len(got))
	}
	p.statuses[p.turn%2].length = 1 << 60 // of a rank that lies
	if got := b.Reported(2); len(got) != MaxBytes {
		t.Errorf("%d bytes", len(got))
	}
}
