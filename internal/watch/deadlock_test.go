package watch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// stillRanks returns two ranks of which nothing goes on: a kernel of rank 0 waits for a
// signal, and rank 1's host is in an exchange that rank 0 has not begun.
func stillRanks() []Rank {
	return []Rank{
		{Status: &Status{Exchange: 4, Still: Still{Rounds: 3, Epoch: 8, Threads: []Threads{
			{Kernel: "gather", Block: 2, Blocks: 1, Count: 1, Wait: Wait{Channel: 5, Name: "halo", Peer: 1, Number: 7}},
			{Kernel: "gather", Block: 2, First: 1, Blocks: 3, Count: 93, At: AtBarrier},
			{Kernel: "gather", Block: 2, First: 32, Blocks: 1, Count: 1, At: AtWarp},
		}, Unbegun: 4, More: 2}}},
		{Status: &Status{Exchange: 5, Exchanging: 1e9, Still: Still{Rounds: 1, Epoch: 9, Exchanging: true}}},
	}
}

func TestStillSince(t *testing.T) {
	const going, still, forever = "goes on", "still", "forever"
	for _, c := range []struct {
		name   string
		change func(before, now []Rank)
		want   string
	}{
		{"all further", func(before, now []Rank) {}, forever},
		{"one not far enough", func(before, now []Rank) { now[0].Still.Rounds-- }, still},
		{"another epoch", func(before, now []Rank) { now[1].Still.Epoch++ }, going},
		{"one not still before", func(before, now []Rank) { before[1].Still = Still{}; now[1].Still.Epoch = 0 }, going},
		{"one that cannot be heard", func(before, now []Rank) { now[0].Status = nil }, going},
		{"one that leaves", func(before, now []Rank) { now[0].Left = true }, going},
		{"an exchange that all have begun", func(before, now []Rank) { now[0].Exchange = 5 }, going},
	} {
		before, now := stillRanks(), stillRanks()
		for i := range now {
			now[i].Still.Rounds += stillRounds
		}
		c.change(before, now)
		got := going
		if same, ever := StillSince(before, now); ever {
			got = forever
		} else if same {
			got = still
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestDeadlock(t *testing.T) {
	ranks := stillRanks()
	want := Verdict{Culprit: 1, Text: "deadlock, nothing can go on: rank 1 never signalled rank 0: rank 0 has waited for signal 7 of channel 'halo' from 1 to 0, block 2; " +
		"rank 1 itself has waited 1s for rank 0 to come to a call that all ranks make on the host; " +
		"rank 0: thread 0 of block 2 of gather waits for signal 7 of channel 'halo' from 1 to 0, block 2, 93 threads of 3 blocks of gather, from 1 of block 2 on, are at __syncthreads, " +
		"thread 32 of block 2 of gather is in a warp function, blocks that have not begun, as the device has no room for more: 4, 2 more such groups of threads; rank 1: no kernel runs, its host is in a call that all ranks make"}
	if diff := cmp.Diff(want, Deadlock(ranks)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(stillRanks(), ranks); diff != "" {
		t.Errorf("the reports have changed:\n%s", diff)
	}
	ranks[0].Still.Threads = []Threads{{Kernel: "gather", Count: 3, At: AtBarrier}, {Kernel: "gather", First: 3, Count: 1, At: AtWarp}}
	ranks[0].Still.More, ranks[0].Still.Unbegun, ranks[1].Still.Exchanging = 0, 0, false
	const inside = "deadlock, nothing can go on: its threads wait for others of their blocks; rank 0: 3 threads of block 0 of gather, from 0 on, are at __syncthreads, thread 3 of block 0 of gather is in a warp function; rank 1: no kernel runs"
	if got := Deadlock(ranks).Text; got != inside {
		t.Errorf("%s\nwant %s", got, inside)
	}
}

// TestStillAdd has threads of two blocks that wait for the same told as one.
func TestStillAdd(t *testing.T) {
	var s Still
	for _, block := range []uint32{3, 5} {
		s.Add(Threads{Kernel: "gather", Block: block, Blocks: 1, Count: 1, Wait: Wait{Channel: 1}})
		s.Add(Threads{Kernel: "gather", Block: block, First: 1, Blocks: 1, Count: 31, At: AtBarrier})
	}
	s.Add(Threads{Kernel: "gather", Block: 7, Blocks: 1, Count: 1, Wait: Wait{Channel: 2}})
	want := []Threads{
		{Kernel: "gather", Block: 3, Blocks: 2, Count: 2, Wait: Wait{Channel: 1}},
		{Kernel: "gather", Block: 3, First: 1, Blocks: 2, Count: 62, At: AtBarrier},
		{Kernel: "gather", Block: 7, Blocks: 1, Count: 1, Wait: Wait{Channel: 2}},
	}
	if diff := cmp.Diff(want, s.Threads); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestStillEncoded has the longest of what a status tells fit, and come back.
func TestStillEncoded(t *testing.T) {
	s := *stillRanks()[0].Status
	for len(s.Still.Threads) < MaxThreads+2 {
		s.Still.Threads = append(s.Still.Threads, s.Still.Threads[0])
	}
	got := testerr.Must(Decode(s.Encode()))(t)
	s.Still.Threads, s.Still.More = s.Still.Threads[:MaxThreads], s.Still.More+2
	if diff := cmp.Diff(&s, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
