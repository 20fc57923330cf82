package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// entry is an element of traceEvents in the format of Chrome's traces ("Trace Event
// Format").
type entry struct {
	Phase string         `json:"ph"`
	Name  string         `json:"name,omitempty"`
	Cat   string         `json:"cat,omitempty"`
	Pid   int            `json:"pid"`
	Tid   int            `json:"tid"`
	Ts    json.Number    `json:"ts,omitempty"`
	Dur   json.Number    `json:"dur,omitempty"`
	ID    int            `json:"id,omitempty"`
	Bind  string         `json:"bp,omitempty"` // "e": to the slice around
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// microseconds returns nanoseconds as the format has them.
func microseconds(ns int64) json.Number {
	sign := ""
	if ns < 0 {
		sign, ns = "-", -ns
	}
	return json.Number(sign + strconv.FormatInt(ns/1000, 10) + "." + fmt.Sprintf("%03d", ns%1000))
}

// Write writes the trace of ranks, each a process of it, which ui.perfetto.dev opens.
func Write(w io.Writer, ranks []*Rank) error {
	var all []*slice
	byRank := make([][]*slice, len(ranks))
	for i, r := range ranks {
		byRank[i] = slicesOf(r)
		arrange(byRank[i])
		all = append(all, byRank[i]...)
	}
	arrows, rejected := match(all)
	zero := int64(math.MaxInt64)
	for _, s := range all {
		zero = min(zero, s.start)
	}
	out := &writer{w: bufio.NewWriterSize(w, 1<<16), zero: zero, tids: map[*slice]int{}}
	facts, err := json.Marshal(summary(ranks, len(arrows), rejected))
	if err != nil {
		return err
	}
	fmt.Fprintf(out.w, `{"displayTimeUnit":"ns","otherData":%s,"traceEvents":[`, facts)
	for i, r := range ranks {
		out.rank(r, byRank[i])
	}
	for i, a := range arrows {
		out.arrow(i+1, &a)
	}
	fmt.Fprint(out.w, "\n]}\n")
	if out.err != nil {
		return out.err
	}
	return out.w.Flush()
}

// summary is what the trace tells about itself.
func summary(ranks []*Rank, arrows, rejected int) map[string]any {
	about := make([]map[string]any, len(ranks))
	for i, r := range ranks {
		about[i] = map[string]any{
			"rank": r.Rank, "device": r.Device, "host": r.Host,
			"clock error ns": r.ClockError(), "events dropped by kernels": r.KernelsDropped, "events dropped by the host": r.HostDropped,
		}
		if r.Failure != "" {
			about[i]["failure"] = r.Failure
		}
	}
	return map[string]any{"ranks": about, "arrows": arrows, "arrows that the clocks contradict": rejected}
}

// writer writes entries.
type writer struct {
	w       *bufio.Writer
	zero    int64
	entries int
	tids    map[*slice]int
	err     error
}

func (w *writer) write(e *entry) {
	b, err := json.Marshal(e)
	if err != nil {
		w.err = err
		return
	}
	if w.entries++; w.entries > 1 {
		w.w.WriteByte(',')
	}
	w.w.WriteByte('\n')
	w.w.Write(b) // Flush returns its error
}

// rank writes the slices of a rank, which are arranged.
func (w *writer) rank(r *Rank, all []*slice) {
	meta := func(tid int, name string, args map[string]any) {
		w.write(&entry{Phase: "M", Name: name, Pid: r.Rank, Tid: tid, Args: args})
	}
	meta(0, "process_name", map[string]any{"name": fmt.Sprintf("rank %d: %s on %s", r.Rank, r.Device, r.Host)})
	meta(0, "process_sort_index", map[string]any{"sort_index": r.Rank})
	label := fmt.Sprintf("clock within %.1f us", float64(r.ClockError())/1000)
	if dropped := r.KernelsDropped + r.HostDropped; dropped > 0 {
		label += fmt.Sprintf(", %d events dropped", dropped)
		w.write(&entry{Phase: "i", Scope: "p", Name: fmt.Sprintf("%d events before were dropped", dropped), Pid: r.Rank, Ts: microseconds(w.first(all)), Args: map[string]any{"kernels": r.KernelsDropped, "host": r.HostDropped}})
	}
	if r.Failure != "" {
		label += ", failed"
		w.write(&entry{Phase: "i", Scope: "p", Name: "the group failed", Pid: r.Rank, Ts: microseconds(w.last(all)), Args: map[string]any{"error": r.Failure}})
	}
	meta(0, "process_labels", map[string]any{"labels": label})
	type row struct {
		track track
		lane  int
	}
	tids := map[row]int{}
	for _, s := range all {
		at := row{s.track, s.lane}
		tid, known := tids[at]
		if !known {
			tid = len(tids) + 1
			tids[at] = tid
			name := s.track.name()
			if s.lane > 0 {
				name += fmt.Sprintf(" (%d)", s.lane+1)
			}
			meta(tid, "thread_name", map[string]any{"name": name})
			// As the number is in the name, rows of a kind stay together.
			meta(tid, "thread_sort_index", map[string]any{"sort_index": int(s.track.kind)<<20 + min(s.track.number, 1<<12)<<6 + min(s.lane, 63)})
		}
		w.tids[s] = tid
		w.write(&entry{Phase: "X", Name: s.name, Cat: category(s), Pid: r.Rank, Tid: tid, Ts: microseconds(s.start - w.zero), Dur: microseconds(max(s.end-s.start, 0)), Args: s.args})
	}
}

func (w *writer) first(all []*slice) int64 {
	if len(all) == 0 {
		return 0
	}
	return all[0].start - w.zero
}

func (w *writer) last(all []*slice) int64 {
	var last int64
	for _, s := range all {
		last = max(last, s.end-w.zero)
	}
	return last
}

func category(s *slice) string {
	return [...]string{"launch", "kernel", "proxy", "transport"}[s.track.kind]
}

// arrow writes an arrow from where its first slice begins to just before where its last
// ends, which is not inside.
func (w *writer) arrow(id int, a *arrow) {
	w.write(&entry{Phase: "s", Name: a.name, Cat: "arrow", ID: id, Pid: a.from.rank.Rank, Tid: w.tids[a.from], Ts: microseconds(a.from.start - w.zero)})
	w.write(&entry{Phase: "f", Bind: "e", Name: a.name, Cat: "arrow", ID: id, Pid: a.to.rank.Rank, Tid: w.tids[a.to], Ts: microseconds(max(a.to.start, a.to.end-1) - w.zero)})
}
