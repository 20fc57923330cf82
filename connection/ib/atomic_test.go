package ib

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestPeersChangeOneWord has two ranks add to one word of a third and exchange another, by its
// card, by its process and by its process's device.
func TestPeersChangeOneWord(t *testing.T) {
	names := testDevices(t)
	rounds := uint64(150)
	if testing.Short() {
		rounds = 40 // in an emulated machine each takes long
	}
	for _, c := range []struct {
		name         string
		none, hidden bool
	}{{"card", false, false}, {"process", true, false}, {"device", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			o := Options{NoAtomics: c.none, Device: names[1]}
			b := newSide(t, 1, o)
			if c.hidden {
				b.t.host = func(*gpu.Buffer) []byte { return nil }
			}
			mine := b.memory(t, 16, false)
			var all sync.WaitGroup
			olds := make([][]uint64, 2)
			for i := range olds {
				a := newSide(t, 2*i, Options{NoAtomics: c.none, Device: names[0]})
				connect(t, a, b)
				dst, old := a.imported(t, mine), a.memory(t, 8*rounds, false)
				olds[i] = make([]uint64, rounds)
				all.Go(func() {
					for k := range rounds {
						if err := a.conn.Add(dst, 0, 1<<40+1); err != nil {
							t.Error(err)
							return
						}
						if err := a.conn.Exchange(old, 8*k, dst, 8, uint64(i)*rounds+k+1); err != nil {
							t.Error(err)
							return
						}
					}
					if err := a.conn.Flush(t.Context()); err != nil {
						t.Error(err)
						return
					}
					read(t, old, 0, olds[i])
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
			words := make([]uint64, 2)
			read(t, mine, 0, words)
			testcmp.Equal(t, "the sum", words[0], 2*rounds*(1<<40+1))
			got := slices.Concat(olds[0], olds[1], words[1:])
			slices.Sort(got)
			for i, value := range got {
				if value != uint64(i) {
					t.Fatalf("%d was not exchanged once: %v", i, got)
				}
			}
		})
	}
}

// TestMessagesOfUnknownKind: the peer's process refuses them.
func TestMessagesOfUnknownKind(t *testing.T) {
	a, b := newPair(t, Options{NoAtomics: true})
	word := b.memory(t, 8, false)
	_, err := b.t.change(message{word.ID(), messageExchange + 1, 0, 1})
	if err == nil || !strings.Contains(err.Error(), "unknown kind 3") {
		t.Error(err)
	}
	a.flush(t)
}

// TestPlacesOfMessages: writes wait for the messages that add to what they change, as long as
// these may not be applied.
func TestPlacesOfMessages(t *testing.T) {
	var o outbox
	o.taken, o.sent = 1<<32-2, 1<<32-2 // it wraps around
	add := func(place uint64) {
		o.places[o.sent%messages] = addedPlace{true, place}
		o.sent++
		o.added = o.sent
	}
	check := func(want string) {
		t.Helper()
		var got []string
		for _, place := range []uint64{0, 1, 8, 15, 16, 24, 40} {
			if o.addsTo(place, 8) {
				got = append(got, fmt.Sprint(place))
			}
		}
		testcmp.Equal(t, "where additions are under way", strings.Join(got, " "), want)
	}
	check("")
	add(8)
	o.places[o.sent%messages] = addedPlace{} // an update
	o.sent++
	add(40)
	check("1 8 15 40")
	if !o.adding() {
		t.Error("no write waits")
	}
	o.taken++
	check("40")
	o.taken += 2
	check("")
	for range 5 { // there are only updates for a long time
		o.taken += 1 << 30
		if o.sent = o.taken; o.adding() {
			t.Error("all is applied, and writes wait")
		}
		o.forget()
	}
}
