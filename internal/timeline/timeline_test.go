package timeline

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// event returns an event of block 0.
func event(kind native.EventKind, start, end uint64, channel uint32, peer int, value, bytes, extra uint64) native.Event {
	return native.Event{What: native.WhatOf(kind, 0), Start: start, End: end, Where: native.WhereOf(channel, peer), Value: value, Bytes: bytes, Extra: extra}
}

// pair returns two ranks with a channel, 7 on rank 0 and 9 on rank 1.
func pair() []*Rank {
	ranks := []*Rank{{Rank: 0, Size: 2, HostGroups: [2]uint32{1 << 20, 1 << 20}}, {Rank: 1, Size: 2, HostGroups: [2]uint32{1 << 20, 1 << 20}}}
	ranks[0].Channels = map[uint32]Channel{7: {Call: 3, Index: 1, Name: "ring"}}
	ranks[1].Channels = map[uint32]Channel{9: {Call: 3, Index: 1, Name: "ring"}}
	return ranks
}

// drawn returns the arrows of ranks: where they begin, and the number that their wait has.
func drawn(ranks []*Rank) (arrows map[uint64]int64, rejected int) {
	var all []*slice
	for _, r := range ranks {
		all = append(all, slicesOf(r)...)
	}
	found, rejected := match(all)
	arrows = map[uint64]int64{}
	for _, a := range found {
		if a.name == "signal" || a.name == "round" {
			arrows[a.to.event.Value] = a.from.start
		}
	}
	return arrows, rejected
}

// TestPortSignals matches waits with the signals of a host and of kernels, which are counted
// apart.
func TestPortSignals(t *testing.T) {
	const host, kernel = native.EventHostSignal, native.EventPortSignal
	wait := func(number, byHost, byKernels uint64) native.Event {
		return event(native.EventPortWait, 10, 1000, 9, 0, number, byHost, byKernels)
	}
	hosts := []native.Event{
		event(host, 100, 101, 7, 1, 1, 0, 0), event(host, 200, 201, 7, 1, 2, 0, 0), event(host, 500, 501, 7, 1, 3, 0, 0),
	}
	kernels := []native.Event{ // after the host's second
		event(kernel, 300, 301, 7, 1, 3, 2, 1), event(kernel, 400, 401, 7, 1, 4, 2, 2),
	}
	waits := []native.Event{wait(1, 1, 0), wait(2, 2, 0), wait(3, 2, 1), wait(4, 2, 2), wait(5, 3, 2)}
	for name, c := range map[string]struct {
		hosts, kernels, waits []native.Event
		want                  map[uint64]int64
	}{
		"all":                    {hosts, kernels, waits, map[uint64]int64{1: 100, 2: 200, 3: 300, 4: 400, 5: 500}},
		"host only":              {hosts, nil, []native.Event{wait(1, 1, 0), wait(2, 2, 0), wait(3, 3, 0)}, map[uint64]int64{1: 100, 2: 200, 3: 500}},
		"a kernel's is missing":  {hosts, kernels[1:], waits, map[uint64]int64{4: 400, 5: 500}},
		"the newest is missing":  {hosts, kernels[:1], waits, map[uint64]int64{1: 100, 2: 200, 3: 300}},
		"kernels tell nothing":   {hosts, nil, waits, map[uint64]int64{1: 100, 2: 200}},
		"the host's are missing": {nil, kernels, waits, map[uint64]int64{3: 300, 4: 400}},
	} {
		ranks := pair()
		ranks[0].HostDoes, ranks[0].Kernels, ranks[1].Kernels = c.hosts, c.kernels, c.waits
		got, rejected := drawn(ranks)
		testcmp.Equal(t, name+": the arrows", got, c.want)
		testcmp.Equal(t, name+": the arrows that are wrong", rejected, 0)
	}
}

// TestClocks draws an arrow that goes back in time only as far as the clocks may be wrong,
// and takes two samples of a clock for a line.
func TestClocks(t *testing.T) {
	for wrong, want := range map[uint64]int{10: 0, 30: 1} {
		ranks := pair()
		ranks[0].Kernels = []native.Event{event(native.EventSignal, 120, 121, 7, 1, 1, 0, 0)}
		ranks[1].Kernels = []native.Event{event(native.EventWait, 50, 100, 9, 0, 1, 0, 0)}
		ranks[1].Hosts.First.Error = wrong
		if got, rejected := drawn(ranks); len(got) != want || rejected != 1-want {
			t.Errorf("within %d: %d arrows, %d wrong", wrong, len(got), rejected)
		}
	}
	c := Clock{First: Sample{Local: 1000, Common: 5000}, Last: Sample{Local: 3000, Common: 7200}}
	for local, want := range map[uint64]int64{1000: 5000, 2000: 6100, 3000: 7200, 0: 3900} {
		if got := c.at(local); got != want {
			t.Errorf("%d is %d, want %d", local, got, want)
		}
	}
	if got := (&Clock{First: Sample{Local: 1000, Common: 5000}}).at(3000); got != 7000 {
		t.Errorf("with one sample, 3000 is %d", got)
	}
}

// TestRounds finds the signal that ended a round where signals end several rounds, also where
// numbers wrap around.
func TestRounds(t *testing.T) {
	ranks := pair()
	const end = 1<<32 - 1
	ranks[0].Kernels = []native.Event{
		event(native.EventRoundSignal, 100, 101, 0, 0, end-1, 2, 4), event(native.EventRoundSignal, 200, 201, 0, 0, 1, 3, 4),
	}
	ranks[1].Kernels = []native.Event{
		event(native.EventRoundWait, 10, 900, 0, 0, end-2, 0, 4), event(native.EventRoundWait, 10, 900, 0, native.NoPeer, end-1, 0, 4),
		event(native.EventRoundWait, 10, 900, 0, 0, 0, 0, 4), event(native.EventRoundWait, 10, 900, 0, 0, 5, 0, 4),
	}
	want := map[uint64]int64{end - 2: 100, end - 1: 100, 0: 200}
	got, _ := drawn(ranks)
	testcmp.Equal(t, "the arrows", got, want)
}

// TestArrange puts what overlaps into rows of its own, and what lies inside into one.
func TestArrange(t *testing.T) {
	var all []*slice
	for _, ends := range [][2]int64{{0, 100}, {10, 20}, {15, 30}, {20, 40}, {100, 110}, {100, 100}} {
		all = append(all, &slice{start: ends[0], end: ends[1]})
	}
	arrange(all)
	var lanes []int
	for _, s := range all {
		lanes = append(lanes, s.lane)
	}
	testcmp.Equal(t, "the lanes", lanes, []int{0, 0, 1, 0, 0, 0})
}

// TestDecode decodes what was encoded, and no part of it.
func TestDecode(t *testing.T) {
	r := pair()[0]
	r.Kernels = []native.Event{event(native.EventSignal, 1, 2, 7, 1, 1, 0, 0)}
	r.HostDoes = []native.Event{event(native.EventWrite, 3, 4, 0, 1, 0, 64, 0)}
	r.Sites = []native.LaunchSite{{Kernel: "k", Stream: 1}}
	b := testerr.Must(r.Encode())(t)
	got := testerr.Must(Decode(b))(t)
	testcmp.Equal(t, "the record", got, r)
	for i := range b {
		if _, err := Decode(b[:i]); err == nil {
			t.Errorf("%d of %d bytes are a record", i, len(b))
		}
	}
	if _, err := Decode(append(b, 0)); err == nil {
		t.Error("a byte more is a record")
	}
}

func FuzzDecode(f *testing.F) {
	b := testerr.Must(pair()[0].Encode())(f)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		testerr.Report(t, Write(&bytes.Buffer{}, []*Rank{r}))
	})
}

// TestWrite has the trace say what was dropped, what has not ended, and why the group failed.
func TestWrite(t *testing.T) {
	ranks := pair()
	ranks[0].Sites = []native.LaunchSite{{Kernel: "hang", Stream: 2}}
	ranks[0].Kernels = []native.Event{event(native.EventLaunchBegin, 1500, 1500, 0, 0, 0, 0, 0), event(native.EventPut, 2000, 4123, 7, 1, 0, 64, 0)}
	ranks[0].KernelsDropped, ranks[0].Failure = 5, "it \"failed\""
	var out bytes.Buffer
	testerr.Check(t, Write(&out, ranks))
	if !json.Valid(out.Bytes()) {
		t.Errorf("it is not JSON:\n%s", &out)
	}
	for _, want := range []string{
		`"name":"hang"`, `"ended":false`, `"ts":0.000,"dur":2.623`, `"ts":0.500,"dur":2.123`, "5 events before were dropped", "stream 2", `it \"failed\"`, "rank 1",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in\n%s", want, &out)
		}
	}
}
