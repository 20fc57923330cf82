package cudaipc

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
)

func TestMark(t *testing.T) {
	p := newPair(t, true, 20*time.Second)
	release := p.hold(t)
	if err := p.conn.Write(p.dst, 0, p.src, 0, 8); err != nil {
		t.Fatal(err)
	}
	var marks [3]connection.Mark
	for i := range marks {
		var err error
		if marks[i], err = p.conn.Mark(); err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range marks {
		if done, err := m.Done(); done || err != nil {
			t.Fatalf("mark %d behind held work: done %v, %v", i, done, err)
		}
	}
	release()
	deadline := time.Now().Add(20 * time.Second)
	for i, m := range marks {
		for done := false; !done; {
			var err error
			if done, err = m.Done(); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("mark %d was not reached", i)
			}
		}
	}
	if err := p.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.conn.Mark(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a mark on a closed connection gave %v", err)
	}
}
