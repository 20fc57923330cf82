package watch

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

//go:embed testdata/verdicts.txt
var cases string

var limits = Limits{Silence: 5 * time.Second, Stuck: 500 * time.Millisecond}

// rankOf returns a rank of the group, which has four.
func rankOf(t *testing.T, ranks []Rank, name string) *Rank {
	i, err := strconv.Atoi(name)
	if err != nil || i >= len(ranks) {
		t.Fatalf("no rank %q", name)
	}
	return &ranks[i]
}

func duration(t *testing.T, text string) time.Duration {
	return testerr.Must(time.ParseDuration(text))(t)
}

// report adds a line of a case to what is known.
func report(t *testing.T, ranks []Rank, line string) {
	f := strings.Fields(line)
	r := rankOf(t, ranks, f[0])
	switch f[1] {
	case "stopped":
		r.Stopped = true
		return
	case "gone":
		r.Ended = true
		return
	case "runs":
		r.Runs = true
		return
	case "left":
		r.Left = true
		return
	case "quiet":
		r.Quiet = duration(t, f[2])
		return
	case "silent":
		r.Silent = duration(t, f[2])
		return
	}
	if r.Status == nil {
		r.Status = &Status{Device: "cuda:0"}
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return n
	}
	switch f[1] {
	case "closes":
		r.Closes, r.Exchange, r.Exchanging, r.ExchangeEnded = true, 1, duration(t, f[2]), true
	case "process":
		r.Process = uint32(number(f[2]))
	case "call":
		r.Call, r.CallText = uint64(number(f[2])), strings.Join(f[3:], " ")
	case "serves":
		r.Trigger, r.Serving = uint8(number(f[2])), duration(t, f[4])
	case "busy":
		// RANK busy WHAT for TIME [compiles]
		r.Busy, r.BusyFor, r.Compiles = strings.ReplaceAll(f[2], "_", " "), duration(t, f[4]), slices.Contains(f, "compiles")
	case "exchange":
		r.Exchange = uint64(number(f[2]))
		if len(f) > 3 {
			r.Exchanging, r.ExchangeEnded = duration(t, f[4]), len(f) > 5 && f[5] == "ended"
		}
	case "waits":
		w := Wait{Peer: number(f[3]), Block: number(f[5]), For: duration(t, f[7]), Ended: slices.Contains(f, "ended")}
		switch what := strings.Split(f[2], ":"); what[0] {
		case "channel":
			w.Channel = uint32(number(what[1]))
			if len(what) > 2 {
				w.Name = what[2]
			}
		case "barrier":
			w.Kind = Barrier
		case "host":
			w.Kind = Host
		case "ring":
			w.Kind = Ring
		case "room":
			w.Kind = Room
		case "message":
			w.Kind = Message
		case "exchange":
			w.Kind = Exchange
		case "link":
			w.Kind = Link
		default:
			t.Fatalf("%s: what wait?", line)
		}
		if i := slices.Index(f, "signal"); i > 0 {
			w.Number = uint64(number(f[i+1]))
		}
		if i := slices.Index(f, "index"); i > 0 {
			w.Index = number(f[i+1])
		}
		if i := slices.Index(f, "in"); i > 0 {
			w.Where = map[string]Where{"outer": Outer, "part": Part, "another": Elsewhere}[f[i+1]]
		}
		w.Outside = slices.Contains(f, "outside")
		r.Waits = append(r.Waits, w)
	case "launched":
		// RANK launched KERNEL nth N number N on STREAM [ended] [grid BLOCKSxTHREADS] [of none|other|unknown]
		l := Launch{Kernel: strings.ReplaceAll(f[2], "_", " "), Nth: uint64(number(f[4])), Number: uint64(number(f[6])), Stream: number(f[8]), Blocks: 2, Threads: 64, Group: ThisGroup, Ended: slices.Contains(f, "ended")}
		if i := slices.Index(f, "grid"); i > 0 {
			grid, block, _ := strings.Cut(f[i+1], "x")
			l.Blocks, l.Threads = uint32(number(grid)), uint32(number(block))
		}
		if i := slices.Index(f, "of"); i > 0 {
			l.Group = map[string]Group{"none": NoGroup, "other": OtherGroup, "unknown": UnknownGroup}[f[i+1]]
		}
		r.Launches = append(r.Launches, l)
	default:
		t.Fatalf("%s: what?", line)
	}
}

func TestJudge(t *testing.T) {
	for _, text := range strings.Split(cases, "\ncase ")[1:] {
		name, text, _ := strings.Cut(text, "\n")
		t.Run(name, func(t *testing.T) {
			ranks, judged := make([]Rank, 4), false
			var outer OuterGroup
			limits := limits
			for line := range strings.Lines(text) {
				line = strings.TrimSpace(line)
				want, ok := strings.CutPrefix(line, "verdict ")
				switch {
				case ok:
					v := JudgePart(ranks, outer, limits)
					got := fmt.Sprint(v.Culprit) + " " + v.Text
					if v.Outside {
						got = fmt.Sprintf("%d<%s", v.Outer, got)
					}
					if v.Culprit == mscclgo.NoRank {
						got = "- " + v.Text
					}
					if got != want {
						t.Errorf("the verdict is\n%s\nnot\n%s", got, want)
					}
					judged = true
				case line == "no heartbeats":
					limits.Silence = 0
				case strings.HasPrefix(line, "part"):
					ranks, outer.Size = ranks[:0], 4
					for _, number := range strings.Fields(line)[1:] {
						n, _ := strconv.Atoi(number)
						outer.Numbers, ranks = append(outer.Numbers, n), append(ranks, Rank{})
					}
				case strings.HasPrefix(line, "outer failed"):
					f := strings.SplitN(line, " ", 4)
					n, _ := strconv.Atoi(f[2])
					outer.Failure = &OuterFailure{n, f[3]}
				case strings.HasPrefix(line, "outer"):
					if outer.Ranks == nil {
						outer.Ranks = make([]Rank, 4)
					}
					report(t, outer.Ranks, strings.TrimPrefix(line, "outer"))
				case line != "":
					report(t, ranks, line)
				}
			}
			if !judged {
				t.Error("the case has no verdict")
			}
		})
	}
}

func TestStatusRoundTrip(t *testing.T) {
	s := &Status{Process: 7, Namespace: 1 << 40, Host: "a", Device: "emu:0", Call: 42, CallText: "all-reduce", Serving: time.Minute, Trigger: 200,
		Exchange: 9, Exchanging: time.Second, ExchangeEnded: true, Busy: "compiles sum.cu", BusyFor: time.Hour, Compiles: true, Waits: []Wait{
			{Kind: Signal, Channel: 5, Name: "gather", Peer: 3, Block: 255, Number: 1 << 40, For: 2 * time.Second, Ended: true, Index: 255},
			{Kind: Exchange, Peer: 9, Where: Outer, Outside: true},
			{Kind: Ring, Peer: 1},
			{Kind: Host, Peer: mscclgo.NoRank, Where: Part, Outside: true},
		}, Launches: []Launch{
			{Stream: 3, Number: 1 << 50, Kernel: "allReduce", Group: OtherGroup, Nth: 7, Blocks: 64, Threads: 256, Hash: 5, Ended: true},
			{Kernel: "a graph"},
		}}
	got := testerr.Must(Decode(s.Encode()))(t)
	testcmp.Equal(t, "the status", got, s)
}

// TestStatusIsBounded encodes more than is allowed.
func TestStatusIsBounded(t *testing.T) {
	long := strings.Repeat("x\x1b", 500)
	s := &Status{Host: long, Device: long, CallText: long, Busy: long, Serving: -1}
	for range 100 {
		s.Waits = append(s.Waits, Wait{Name: long, For: -1})
		s.Launches = append(s.Launches, Launch{Kernel: long})
		s.Still.Threads = append(s.Still.Threads, Threads{Kernel: long, Wait: Wait{Name: long}})
	}
	b := s.Encode()
	if len(b) > MaxBytes {
		t.Errorf("%d bytes, more than %d", len(b), MaxBytes)
	}
	got := testerr.Must(Decode(b))(t)
	if len(got.Launches) != MaxLaunches || len(got.Launches[0].Kernel) != MaxKernel || strings.Contains(got.Launches[0].Kernel, "\x1b") {
		t.Errorf("its launches became %+v", got.Launches)
	}
	if len(got.Waits) != MaxWaits || len(got.CallText) != MaxText || len(got.Waits[0].Name) != MaxName || strings.Contains(got.CallText+got.Waits[0].Name, "\x1b") {
		t.Errorf("it became %+v", got)
	}
}

// TestJudgeHostile judges noise: there is always some verdict.
func TestJudgeHostile(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		ranks, outer := make([]Rank, random.IntN(5)), OuterGroup{Ranks: make([]Rank, random.IntN(5)), Size: random.IntN(7)}
		if random.IntN(2) == 0 {
			outer.Failure = &OuterFailure{random.IntN(7) - 1, "why"}
		}
		for range random.IntN(5) {
			outer.Numbers = append(outer.Numbers, random.IntN(7)-1)
		}
		for i := range len(ranks) + len(outer.Ranks) {
			if random.IntN(4) == 0 {
				continue
			}
			s := &Status{Call: uint64(random.IntN(2)), Serving: time.Duration(random.IntN(3)) * time.Second,
				Exchange: uint64(random.IntN(3)), Exchanging: time.Duration(random.IntN(3)) * time.Second, ExchangeEnded: random.IntN(2) == 0}
			for range random.IntN(4) {
				s.Waits = append(s.Waits, Wait{Kind: Kind(random.IntN(int(kinds))), Peer: random.IntN(7) - 1, For: time.Duration(random.IntN(3)) * time.Second, Ended: random.IntN(3) == 0,
					Where: Where(random.IntN(int(wheres))), Outside: random.IntN(3) == 0, Block: random.IntN(2), Index: random.IntN(2)})
			}
			for range random.IntN(4) {
				s.Launches = append(s.Launches, Launch{Stream: random.IntN(2), Number: uint64(random.IntN(3)), Kernel: "k", Group: Group(random.IntN(int(groups))), Nth: uint64(random.IntN(3)), Blocks: uint32(random.IntN(4)), Ended: random.IntN(2) == 0})
			}
			if i < len(ranks) {
				ranks[i].Status = s
			} else {
				outer.Ranks[i-len(ranks)].Status = s
			}
		}
		if v := JudgePart(ranks, outer, limits); v.Text == "" || v.Culprit >= len(ranks) {
			t.Fatalf("%+v, %+v: %+v", ranks, outer, v)
		}
	}
}

// TestOutsider has texts of any length, which are told whole.
func TestOutsider(t *testing.T) {
	text := Outsider(strings.Repeat("é", 4000), 12)
	if !strings.HasSuffix(text, "; rank 12 of the outer group is not of this one") || !utf8.ValidString(text) || len("communicator: abort (rank 1000): ")+len(text) > 4000 {
		t.Errorf("%d bytes: %.80q", len(text), text)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add((&Status{CallText: "sum", Waits: []Wait{{Name: "gather", Peer: 1}}}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil {
			return
		}
		again := testerr.Must(Decode(s.Encode()))(t)
		testcmp.Equal(t, "the status encoded again", again, s)
	})
}
