package shm

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testlink"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestPeersChangeOneWord has two ranks over shared memory and one over Ethernet add to one word
// of a fourth and exchange another, of memory that its host changes and of memory that its
// device does. Nothing is lost.
func TestPeersChangeOneWord(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			b := newRank(t, 0, Options{})
			// Over Ethernet the host changes what it reaches, which for an emulated device is all.
			byEthernet := newEthernet(t, b.reg)
			mine := memory(t, b, k, 16)
			var peers []*rank
			var conns []*connection.Connection
			for i := range 2 {
				a := newRank(t, 1+i, Options{})
				peers, conns = append(peers, a), append(conns, connect(t, a, b).Connection)
			}
			c := newRank(t, 3, Options{})
			conns = append(conns, connectEthernet(t, newEthernet(t, c.reg), byEthernet))
			peers = append(peers, c)

			const rounds = 300
			got := make([][]uint64, len(peers))
			var all sync.WaitGroup
			for i, a := range peers {
				dst, old := imported(t, a, mine), memory(t, a, k, 8*rounds)
				got[i] = make([]uint64, rounds)
				all.Go(func() {
					for n := range uint64(rounds) {
						if err := errors.Join(conns[i].Add(dst, 0, 1<<40+1), conns[i].Exchange(old, 8*n, dst, 8, uint64(i)*rounds+n+1)); err != nil {
							t.Error(err)
							return
						}
					}
					testerr.Report(t, errors.Join(conns[i].Flush(t.Context()), gpu.CopyOut(got[i], old.Buffer())))
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
			words := make([]uint64, 2)
			testerr.Check(t, gpu.CopyOut(words, mine.Buffer()))
			testcmp.Equal(t, "the sum", words[0], uint64(len(peers)*rounds*(1<<40+1)))
			olds := append(slices.Concat(got...), words[1])
			slices.Sort(olds)
			for i, value := range olds {
				if value != uint64(i) {
					t.Fatalf("%d was not exchanged once: %v", i, olds)
				}
			}
		})
	}
}

// newEthernet attaches a transport over Ethernet to a rank that has one over shared memory.
func newEthernet(t *testing.T, reg *registeredmem.Registry) connection.Endpoint {
	t.Helper()
	e := testerr.Must(ethernet.New(reg, ethernet.Options{Secret: secret, Interface: "127.0.0.0/8"}))(t)
	t.Cleanup(func() {
		testerr.Report(t, errors.Join(reg.Close(), e.Close()))
	})
	return testerr.Must(e.NewEndpoint())(t)
}

func connectEthernet(t *testing.T, from, to connection.Endpoint) *connection.Connection {
	t.Helper()
	type result struct {
		c   *connection.Connection
		err error
	}
	other := make(chan result, 1)
	theirs, mine := testlink.Marshal(t, to), testlink.Marshal(t, from)
	go func() {
		c, err := to.Connect(t.Context(), mine)
		other <- result{c, err}
	}()
	c, err := from.Connect(t.Context(), theirs)
	back := <-other
	testerr.Check(t, errors.Join(err, back.err))
	t.Cleanup(func() { errors.Join(c.Close(), back.c.Close()) })
	return c
}
