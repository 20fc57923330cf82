package communicator

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// caller is a rank of a board, with what the rank remembers.
type caller struct {
	b      *board
	index  int
	number uint64
	digest uint64
}

func (c *caller) call(text string) (first note, ok bool) {
	c.number++
	c.digest = extend(c.digest, text)
	return c.b.post(c.index, c.number, c.digest, text)
}

// agrees makes a call and reports whether it was compared and is alike.
func (c *caller) agrees(text string) (compared, alike bool) {
	first, ok := c.call(text)
	return ok && first.index() != c.index, ok && first.matches(c.digest)
}

// callers returns ranks of a new board that have made a number of calls.
func callers(n int, number uint64) []caller {
	b := aloneBoard(n, n)
	for i := range min(number, boardSlots) {
		b.slots[(number-i)%boardSlots] = uint64(newNote(number-i, 0, 0))
	}
	all := make([]caller, n)
	for i := range all {
		all[i] = caller{b.board, i, number, number}
	}
	return all
}

// TestBoardWraps has one rank follow another through the slots several times, and
// past the number at which laps begin anew.
func TestBoardWraps(t *testing.T) {
	for _, from := range []uint64{0, boardSlots<<16 - boardSlots - 3} {
		ranks := callers(2, from)
		for i := range 3 * boardSlots {
			ranks[0].call("sum")
			if compared, alike := ranks[1].agrees("sum"); !compared || !alike {
				t.Fatalf("from %d, call %d: compared %v, alike %v", from, i, compared, alike)
			}
		}
		ranks[1].call("sum")
		if compared, alike := ranks[0].agrees("max"); !compared || alike {
			t.Errorf("from %d: a call that differs: compared %v, alike %v", from, compared, alike)
		}
	}
}

// TestBoardLapped has one rank run far ahead, and the other differ in a call whose
// slot was taken by a later one.
func TestBoardLapped(t *testing.T) {
	ranks := callers(2, 0)
	const ahead = 3 * boardSlots
	for range ahead {
		ranks[0].call("sum")
	}
	for i := range ahead {
		text := "sum"
		if i == 5 {
			text = "max"
		}
		compared, alike := ranks[1].agrees(text)
		if want := i+1 > ahead-boardSlots; compared != want {
			t.Fatalf("call %d: compared %v, want %v", i+1, compared, want)
		}
		if compared && alike {
			t.Fatalf("call %d: the difference at call 6 is lost", i+1)
		}
	}
}

func TestBoardText(t *testing.T) {
	ranks := callers(2, 0)
	long := strings.Repeat("x", textBytes)
	ranks[1].call("a longer text")
	ranks[1].call("short")
	ranks[1].call(long + "more")
	ranks[1].call("bad\n\xff")
	got := map[uint64]string{}
	for number := range uint64(6) {
		if text, ok := ranks[0].b.text(1, number); ok {
			got[number] = text
		}
	}
	got[0], _ = ranks[0].b.text(7, 1)
	want := map[uint64]string{0: "", 1: "a longer text", 2: "short", 3: long, 4: "bad??"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("texts by number (-want +got):\n%s", diff)
	}
	for range boardTexts {
		ranks[1].call("sum")
	}
	if text, ok := ranks[0].b.text(1, 2); ok {
		t.Errorf("call 2 is still there: %q", text)
	}
}

// TestBoardHostile fills a board with noise: calls go on, and no text has anything
// that a terminal would obey.
func TestBoardHostile(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for range 50 {
		ranks := callers(2, 0)
		for i := range ranks[0].b.slots {
			ranks[0].b.slots[i] = random.Uint64()
		}
		var noise [textBytes]byte
		random.Read(noise[:])
		for i := range uint64(boardTexts) {
			ranks[1].b.write(1, i, string(noise[:]))
		}
		for range 100 {
			first, _ := ranks[0].call("sum")
			if text, ok := ranks[0].b.text(first.index(), ranks[0].number); ok {
				for _, r := range text {
					if r < ' ' || r > '~' {
						t.Fatalf("the text has %q", r)
					}
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

// TestBoardAttach refuses what is no board's file.
func TestBoardAttach(t *testing.T) {
	file := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("test", unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "test")
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return f
	}
	right := int64(boardBytes(3, 5))
	for name, f := range map[string]*os.File{
		"not sealed": file(right, 0),
		"too small":  file(right-1, boardSeals),
		"too large":  file(right+1, boardSeals),
		"none":       nil,
	} {
		s := &sharedBoard{}
		if err := s.attach(f, 3, 5); err == nil {
			t.Errorf("%s: attached", name)
			s.close()
		}
	}
	s := &sharedBoard{}
	if err := s.attach(file(right, boardSeals), 3, 5); err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}
