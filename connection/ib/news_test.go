package ib

import (
	"errors"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestNewsOfMany closes more memories at a time than messages may be under way, most before
// the connection is used. The peer hears of each.
func TestNewsOfMany(t *testing.T) {
	const count, before = 2 * messages, messages + 44
	for _, no := range []bool{false, true} {
		a, b := newPair(t, Options{Depth: minDepth, NoAtomics: no})
		src, stays := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, false))
		var mine []*registeredmem.Memory
		for range count {
			mine = append(mine, b.memory(t, 8, true))
		}
		last := a.imported(t, mine[count-1])
		for i, m := range mine {
			if i == before {
				testerr.Check(t, a.conn.Write(stays, 0, src, 0, 64))
			}
			testerr.Check(t, m.Close())
		}
		for i, m := range mine {
			for end := time.Now().Add(patience); !a.d.heard(m); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("memory %d of %d is never heard to be closed; the ranks' connections: %v, %v", i, count, a.d.failed("look"), b.d.failed("look"))
				}
			}
		}
		testerr.Expect(t, a.conn.UpdateAndSync(last, 0, 0, 1), mscclgo.ErrRemote, "rank 0, peer 1", "nothing was sent")
		a.flush(t)
		b.flush(t)
	}
}

// TestClosedBehindWrites has the peer close memory that a rank has changed, as it may once it has seen the
// signal behind the change. The flush and the update that follow read back elsewhere.
func TestClosedBehindWrites(t *testing.T) {
	for name, o := range map[string]Options{"atomics": {}, "messages": {NoAtomics: true}} {
		t.Run(name, func(t *testing.T) {
			for _, flushed := range []bool{false, true} {
				a, b := newPair(t, o)
				src, host := a.memory(t, 64, false), a.imported(t, b.memory(t, 64, true))
				mine := b.memory(t, 64, false)
				m := a.imported(t, mine)
				k := testerr.Must(a.d.remote("test", m))(t)
				k.device = true // a GPU's
				a.d.toDevices = true
				testerr.Check(t, errors.Join(a.conn.Write(m, 8, src, 0, 8), a.conn.UpdateAndSync(m, 0, 0, 1)))
				if flushed {
					a.flush(t)
				}
				word := [1]uint64{}
				for end := time.Now().Add(patience); word[0] != 1; time.Sleep(time.Millisecond) {
					if read(t, mine, 0, word[:]); time.Now().After(end) {
						t.Fatal("the update does not arrive")
					}
				}
				testerr.Check(t, mine.Close())
				for end := time.Now().Add(patience); !a.d.heard(m); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("the memory is never heard to be closed")
					}
				}
				if !flushed {
					a.flush(t)
				}
				testerr.Check(t, a.conn.UpdateAndSync(host, 0, 0, 1))
				a.flush(t)
			}
		})
	}
}

// TestNewsToOneWhoLeft closes a memory when the peer has closed its connection. That is no
// error of this rank's, which has queued nothing that is not done.
func TestNewsToOneWhoLeft(t *testing.T) {
	a, b := newPair(t, Options{})
	testerr.Check(t, write(t, a, b))
	testerr.Check(t, write(t, b, a))
	m := b.memory(t, 64, false)
	testerr.Check(t, a.conn.Close())
	testerr.Check(t, m.Close())
	posted := func() bool {
		b.d.mu.Lock()
		defer b.d.mu.Unlock()
		return b.d.queues[0].posted == uint64(b.d.c.news_to)
	}
	for end := time.Now().Add(patience); !posted(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the peer is never told")
		}
	}
	b.flush(t)
	testerr.Report(t, b.conn.Close())
}
