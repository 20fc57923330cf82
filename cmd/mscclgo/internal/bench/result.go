package bench

import (
	"encoding/json"
	"io"
	"time"
)

// Result is the measurement of one way to do a collective at one size.
type Result struct {
	Stage      string  `json:"stage"` // "tune" or "run"
	Collective string  `json:"collective"`
	Ranks      int     `json:"ranks"`
	Device     string  `json:"device"` // rank 0's model
	Emulated   bool    `json:"emulated"`
	Link       string  `json:"link"`
	Bytes      uint64  `json:"bytes"`
	Count      uint64  `json:"count"`
	Type       string  `json:"type"`
	Op         string  `json:"op"`
	Place      string  `json:"place"`
	Offset     uint64  `json:"offset"`
	Graph      bool    `json:"graph"`
	Overlap    bool    `json:"overlap"`
	Iters      int     `json:"iters"`
	Algorithm  string  `json:"algorithm"`
	Blocks     int     `json:"blocks"`
	Threads    int     `json:"threads"`
	Grid       int     `json:"grid"`          // blocks that the kernel had, of `blocks` at most
	SMs        int     `json:"sms,omitempty"` // bound of the blocks of any kernel, if there was one
	Time       Times   `json:"time"`
	AlgBW      float64 `json:"algbw"` // 10^9 bytes a second
	BusBW      float64 `json:"busbw"`
	Wrong      int     `json:"wrong"` // elements of all ranks; -1: not checked
	Others     []Other `json:"others,omitempty"`

	bus float64
}

// The stages: [Tune] and [Run].
const (
	stageTune = "tune"
	stageRun  = "run"
)

// Other is the measurement of something else that does the same.
type Other struct {
	Name  string  `json:"name"`
	Time  Times   `json:"time"`
	Ratio float64 `json:"ratio"` // the result's time over this one; of [withUnprepared], the inverse
	Wrong int     `json:"wrong"` // as in Result
}

// Times are the times of one operation in all replays, the slowest rank's.
type Times struct {
	Median, Least, Most time.Duration
}

// MarshalJSON writes the times in microseconds.
func (t Times) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]float64{"median": micros(t.Median), "least": micros(t.Least), "most": micros(t.Most)})
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// row returns the result as a row of the table.
func (r *Result) row() tableRow {
	row := tableRow{
		Bytes: r.Bytes, Count: r.Count, Type: r.Type, Op: r.Op, Algo: r.Algorithm, Blocks: r.Grid, Place: r.Place,
		Time: r.Time.Median, Bus: r.bus, Wrong: max(r.Wrong, 0),
	}
	for _, o := range r.Others {
		row.Others = append(row.Others, tableOther{o.Time.Median, o.Ratio})
	}
	return row
}

// writeJSON writes the result as a line.
func (r *Result) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }
