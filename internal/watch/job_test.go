package watch

import (
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestSoFar(t *testing.T) {
	for name, c := range map[string]struct {
		told string
		want string // in the verdict; "" for none
	}{
		"nothing":           {"", ""},
		"calls":             {"0 call 3 sum\n1 call 2 sum", ""},
		"a short wait":      {"0 waits barrier 1 block 0 for 900ms", ""},
		"a long wait":       {"0 waits barrier 1 block 0 for 2s\n1 call 0", "rank 1 did not come"},
		"an exchange":       {"0 exchange 3 for 2s\n1 exchange 2", "rank 1 did not come"},
		"stopped":           {"1 process 7\n1 stopped", "rank 1 is stopped (process 7)"},
		"calls that differ": {"0 call 3 sum\n1 call 3 max\n2 call 3 sum", "rank 1 makes call 3, max"},
		"a wait of a part":  {"0 waits barrier 1 block 0 for 3s in part\n1 waits barrier 0 block 0 for 2s ended in part", ""},
		"a short wait here": {"0 waits barrier 1 block 0 for 3s in part\n2 waits barrier 1 block 0 for 900ms", ""},
		"a long wait here":  {"0 waits barrier 1 block 0 for 3s in part\n2 waits barrier 3 block 0 for 2s", "rank 3 did not come"},
		"a wait that leads outside": {"0 waits barrier 1 block 0 for 2s\n1 waits channel:5 9 block 0 for 3s in outer outside",
			"rank 9 of the outer group never signalled rank 1: rank 1 has waited 3s"},
		"it has left": {"0 waits barrier 1 block 0 for 2s\n0 left", ""},
	} {
		ranks := make([]Rank, 4)
		for line := range strings.Lines(c.told) {
			report(t, ranks, strings.TrimSpace(line))
		}
		v, ok := SoFar(ranks, limits)
		if ok != (c.want != "") || !strings.Contains(v.Text, c.want) {
			t.Errorf("%s: %v, %+v; want %q", name, ok, v, c.want)
		}
		if s := ranks[0].Status; s != nil {
			for _, w := range s.Waits {
				if w.Ended {
					t.Errorf("%s: the status was changed", name)
				}
			}
		}
	}
}

func TestDoing(t *testing.T) {
	s := &Status{Exchange: 4, Exchanging: 2 * time.Second, Serving: time.Second, Trigger: 200,
		Waits:    []Wait{{Channel: 5, Name: "halo", Peer: 2, Block: 3, Number: 9, For: time.Minute, Ended: true}, {Kind: Ring, For: time.Second}},
		Launches: []Launch{{Stream: 1, Kernel: "spin", Nth: 2, Blocks: 1, Threads: 32, Hash: 10}, {Kernel: "old", Ended: true}}}
	const want = `has waited 1m0s for signal 9 of channel 'halo' from 2 to 0, block 3, and its deadline has passed
has waited 1s for its own host to serve the ring of triggers or end a flush
has served one trigger of kind 200 for 1s
has waited 2s in exchange 4, a call that all ranks make on the host
is not known to have ended launch 2 of kernel spin (1x32), arguments 0000000a, on stream 1`
	testcmp.Equal(t, "what the rank does", strings.Join(s.Doing(0), "\n"), want)
}
