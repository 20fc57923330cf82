package conntest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// testOtherRegistries names memories that were registered in other registries of the two ranks, under the
// numbers that memories of the connection's have. Such a call is refused, or does what it says.
func testOtherRegistries(t *testing.T, p, q *pair) {
	const size = 64
	const mine, theirs, otherMine, otherTheirs = 0, 1, 2, 3
	c := p.a.Connection
	contents := func(i int) []byte { return bytes.Repeat([]byte{byte(1 + i)}, size) }
	var owned, named [4]*registeredmem.Memory
	for i, from := range []*pair{p, p.back(), q, q.back()} {
		owned[i] = source(t, from, device, size, contents(i))
		named[i] = owned[i]
		if i == mine {
			continue
		}
		var err error
		if named[i], err = p.imported(t, owned[i]); errors.Is(err, mscclgo.ErrInvalid) && i > theirs {
			t.Skipf("the ranks that are made are not of one group each time: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	// Memories of the connection's registries are used first: a transport may keep what it knows of them.
	if err := c.Write(named[theirs], 0, named[mine], 0, 8); err != nil {
		t.Fatal(err)
	}
	if err := c.Read(named[mine], 0, named[theirs], 0, 8); err != nil && !errors.Is(err, mscclgo.ErrUnsupported) {
		t.Fatal(err)
	}
	if !p.flush(t) {
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(contents(i)) }
	set := func(b []byte, value uint64) { binary.NativeEndian.PutUint64(b, value) }
	for _, x := range []struct {
		name string
		call func() error
		does func(b *[4][]byte)
	}{
		{"write to another", func() error { return c.Write(named[otherTheirs], 0, named[mine], 0, size) },
			func(b *[4][]byte) { copy(b[otherTheirs], b[mine]) }},
		{"write from another", func() error { return c.Write(named[theirs], 0, named[otherMine], 0, size) },
			func(b *[4][]byte) { copy(b[theirs], b[otherMine]) }},
		{"write bytes to another", func() error { return c.WriteBytes(named[otherTheirs], 0, []byte{9, 9}) },
			func(b *[4][]byte) { copy(b[otherTheirs], []byte{9, 9}) }},
		{"read from another", func() error { return c.Read(named[mine], 0, named[otherTheirs], 0, size) },
			func(b *[4][]byte) { copy(b[mine], b[otherTheirs]) }},
		{"read into another", func() error { return c.Read(named[otherMine], 0, named[theirs], 0, size) },
			func(b *[4][]byte) { copy(b[otherMine], b[theirs]) }},
		{"update another", func() error {
			return c.UpdateAndSync(named[otherTheirs], 8, word(otherTheirs), word(otherTheirs)+1)
		}, func(b *[4][]byte) { set(b[otherTheirs][8:], word(otherTheirs)+1) }},
		{"store to another", func() error { return c.Store(named[otherTheirs], 8, 7) },
			func(b *[4][]byte) { set(b[otherTheirs][8:], 7) }},
		{"add to another", func() error { return c.Add(named[otherTheirs], 8, 7) },
			func(b *[4][]byte) { set(b[otherTheirs][8:], word(otherTheirs)+7) }},
		{"exchange another's", func() error { return c.Exchange(named[mine], 16, named[otherTheirs], 8, 7) },
			func(b *[4][]byte) { set(b[otherTheirs][8:], 7); set(b[mine][16:], word(otherTheirs)) }},
		{"exchange into another", func() error { return c.Exchange(named[otherMine], 16, named[theirs], 8, 7) },
			func(b *[4][]byte) { set(b[theirs][8:], 7); set(b[otherMine][16:], word(theirs)) }},
	} {
		var want [4][]byte
		for i, m := range owned {
			want[i] = contents(i)
			if err := gpu.CopyIn(m.Buffer(), want[i]); err != nil {
				t.Fatal(err)
			}
		}
		err := x.call()
		switch {
		case err == nil:
			x.does(&want)
		case !errors.Is(err, mscclgo.ErrInvalid) && !errors.Is(err, mscclgo.ErrUnsupported):
			t.Errorf("%s: %v", x.name, err)
		}
		if !p.flush(t) {
			t.Fatalf("%s: nothing works any more", x.name)
		}
		for i, of := range []string{"this rank", "the peer", "another registry of this rank", "another registry of the peer"} {
			if at := differ(want[i], read[byte](t, owned[i], 0, size)); at >= 0 {
				t.Errorf("%s returned %v: byte %d of the memory of %s is wrong", x.name, err, at, of)
			}
		}
	}
}
