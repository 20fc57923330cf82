package bench

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/mscclgo/mscclgo/internal/bytesize"
)

// Plot draws time and bus bandwidth against size as an SVG file: a row for each
// collective and place, a curve for each algorithm and each other library. What
// -algo auto chose is one curve. Results with several bounds of the blocks are drawn against
// these, a row for each size.
func Plot(file string, results []Result) error {
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(draw(w, results), w.Close())
}

//go:embed plot.svg
var plotText string

var plotTemplate = template.Must(template.New("plot.svg").Parse(plotText))

// The layout, in pixels. A row has a heading, two panels with room for their labels
// left and below, and a legend on the right.
const (
	plotWidth   = 1120
	rowHeight   = 330
	panelLeft   = 62 // of the first panel; also the gap before the second
	panelTop    = 44
	panelWidth  = 400
	panelHeight = 230
)

// row is what the template draws of a collective and place.
type row struct {
	Y               int
	Heading, Remark string
	Across          string // what the horizontal axes are
	Panels          []panel
	Legend          []legend
}

// panel is a pair of axes with curves.
type panel struct {
	X, Y, Width, Height float64
	Label               string // of the vertical axis
	Columns, Lines      []tick
	Curves              []path
}

// tick is a line of the grid at a place in pixels. Text may be empty.
type tick struct {
	At   float64
	Text string
}

// stroke is how a curve is drawn: by colour, and beyond the last colour by dashes.
type stroke struct{ Colour, Dash string }

type path struct {
	stroke
	Points string // of a polyline
	Marks  []Point
}

type legend struct {
	stroke
	Y    float64
	Name string
}

// draw writes the plot.
func draw(w io.Writer, results []Result) error {
	across := acrossSizes
	if slices.ContainsFunc(results, func(r Result) bool { return r.SMs != results[0].SMs }) {
		across = acrossBlocks
	}
	type key struct {
		collective, place string
		bytes             uint64
	}
	var keys []key
	grouped := map[key][]Result{}
	for _, r := range results {
		k := key{r.Collective, r.Place, 0}
		if across == acrossBlocks {
			k.bytes = r.Bytes
		}
		if grouped[k] == nil {
			keys = append(keys, k)
		}
		grouped[k] = append(grouped[k], r)
	}
	var rows []row
	for _, k := range keys {
		rows = append(rows, rowOf(grouped[k], across, len(rows)*rowHeight))
	}
	return drawRows(w, rows)
}

// What horizontal axes are.
const (
	acrossSizes  = "bytes"
	acrossBlocks = "blocks, at most"
)

// at returns where a result is on a horizontal axis.
func (r *Result) at(across string) uint64 {
	if across == acrossBlocks {
		return uint64(r.SMs)
	}
	return r.Bytes
}

// Chart is a row of a plot of anything: two pairs of axes, both logarithmic.
type Chart struct {
	Heading, Remark string
	Across          string    // what the horizontal axes are
	Labels          [2]string // of the vertical axes
	Curves          []Curve
}

// Curve is one of a chart, with its points in each of the two pairs of axes.
type Curve struct {
	Name   string
	Points [2][]Point
}

// Point is a point of a curve. Both numbers are above 0.
type Point struct{ X, Y float64 }

// PlotCharts draws charts as SVG.
func PlotCharts(w io.Writer, charts []Chart) error {
	var rows []row
	for _, c := range charts {
		curves := make([]*curve, len(c.Curves))
		for i, from := range c.Curves {
			curves[i] = &curve{from.Name, from.Points[0], from.Points[1]}
		}
		r := row{Y: len(rows) * rowHeight, Heading: c.Heading, Remark: c.Remark, Across: c.Across}
		r.draw(curves, c.Labels)
		rows = append(rows, r)
	}
	return drawRows(w, rows)
}

func drawRows(w io.Writer, rows []row) error {
	return plotTemplate.Execute(w, struct {
		Width, Height int
		Rows          []row
	}{plotWidth, len(rows) * rowHeight, rows})
}

// curve is what a plot shows of one contestant: a point for each size or bound.
type curve struct {
	name   string
	micros []Point
	busbw  []Point
}

// add adds a point.
func (c *curve) add(r *Result, across string, t time.Duration) {
	if t <= 0 {
		return
	}
	at := float64(r.at(across))
	c.micros = append(c.micros, Point{at, micros(t)})
	if bw := float64(r.Bytes) / float64(t.Nanoseconds()) * r.bus; bw > 0 {
		c.busbw = append(c.busbw, Point{at, bw})
	}
}

// curvesOf sorts the results of a collective into curves. Places with one result
// each are one curve, whichever algorithms were chosen.
func curvesOf(results []Result, across string) []*curve {
	var curves []*curve
	of := func(name string) *curve {
		i := slices.IndexFunc(curves, func(c *curve) bool { return c.name == name })
		if i < 0 {
			curves = append(curves, &curve{name: name})
			i = len(curves) - 1
		}
		return curves[i]
	}
	several := slices.ContainsFunc(results[1:], func(r Result) bool { return r.at(across) == results[0].at(across) })
	for i := range results {
		r := &results[i]
		name := "mscclgo"
		if several {
			name = r.Algorithm
		}
		of(name).add(r, across, r.Time.Median)
		if i == 0 || results[i-1].at(across) != r.at(across) {
			for _, o := range r.Others {
				of(o.Name).add(r, across, o.Time.Median)
			}
		}
	}
	return curves
}

// rowOf draws the results of one collective, from a height on.
func rowOf(results []Result, across string, y int) row {
	first := results[0]
	place := map[string]string{"in": "in place", "out": "out of place"}[first.Place]
	r := row{Y: y, Across: across, Heading: fmt.Sprintf("%s, %d ranks, %s, %s", first.Collective, first.Ranks, first.Type, place), Remark: first.Device}
	if across == acrossBlocks {
		r.Heading += ", " + bytesize.Format(first.Bytes)
	}
	if first.Emulated {
		r.Remark = "emulated: times mean nothing"
	}
	r.draw(curvesOf(results, across), [2]string{"time, µs", "bus bandwidth, GB/s"})
	return r
}

// draw fills in the legend and the panels.
func (r *row) draw(curves []*curve, labels [2]string) {
	for i, c := range curves {
		r.Legend = append(r.Legend, legend{strokeOf(i), float64(panelTop + 8 + 18*i), c.name})
	}
	for i, label := range labels {
		p := panel{
			X: float64(panelLeft + i*(panelWidth+panelLeft)), Y: panelTop, Width: panelWidth, Height: panelHeight, Label: label,
		}
		p.draw(curves, func(c *curve) []Point { return [][]Point{c.micros, c.busbw}[i] })
		r.Panels = append(r.Panels, p)
	}
}

// draw fills in the grid and the curves, on logarithmic axes.
func (p *panel) draw(curves []*curve, of func(*curve) []Point) {
	var xs, ys []float64
	for _, c := range curves {
		for _, at := range of(c) {
			xs, ys = append(xs, at.X), append(ys, at.Y)
		}
	}
	if len(xs) == 0 {
		return
	}
	x := axis{slices.Min(xs), slices.Max(xs), p.Width}
	if x.low == x.high {
		x.low, x.high = x.low/2, x.high*2
	}
	y := axis{-1, -1, p.Height}
	y.low, y.high = roundDown(slices.Min(ys)), roundUp(slices.Max(ys))
	if y.low == y.high {
		y.high = 10 * y.low
	}
	for _, size := range sizeTicks(x.low, x.high) {
		p.Columns = append(p.Columns, tick{x.at(size), bytesize.Format(uint64(size))})
	}
	for v := y.low; v < y.high*1.5; v = roundUp(v * 1.5) {
		t := tick{At: p.Height - y.at(v)}
		if decade := math.Abs(math.Log10(v)-math.Round(math.Log10(v))) < 1e-9; decade || y.high/y.low < 1e3 {
			t.Text = strconv.FormatFloat(v, 'f', -1, 32)
		}
		p.Lines = append(p.Lines, t)
	}
	for i, c := range curves {
		drawn := path{stroke: strokeOf(i)}
		for _, at := range of(c) {
			at = Point{x.at(at.X), p.Height - y.at(at.Y)}
			drawn.Points += fmt.Sprintf("%.1f,%.1f ", at.X, at.Y)
			drawn.Marks = append(drawn.Marks, at)
		}
		p.Curves = append(p.Curves, drawn)
	}
}

// axis is logarithmic.
type axis struct{ low, high, pixels float64 }

func (a axis) at(v float64) float64 {
	at := a.pixels * math.Log(v/a.low) / math.Log(a.high/a.low)
	return math.Round(10*at) / 10
}

// roundUp returns the next of 1, 2, 5, 10 and so on that is not below v.
func roundUp(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, step := range []float64{1, 2, 5} {
		if step*decade >= v*(1-1e-9) {
			return step * decade
		}
	}
	return 10 * decade
}

// roundDown returns the last of 1, 2, 5, 10 and so on that is not above v.
func roundDown(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)+1e-9))
	for _, step := range []float64{5, 2} {
		if step*decade <= v*(1+1e-9) {
			return step * decade
		}
	}
	return decade
}

// sizeTicks returns powers of two, every fourth or fewer, so that their labels fit.
func sizeTicks(low, high float64) []float64 {
	const most = 11
	step := 2.0
	for math.Log(high/low)/math.Log(step) > most {
		step *= 2
	}
	var ticks []float64
	for size := 1.0; size <= high && size < maxSize; size *= step {
		if size >= low {
			ticks = append(ticks, size)
		}
	}
	return ticks
}

// colours can be told apart by most people with colour blindness (Okabe and Ito,
// "Color Universal Design", 2008).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

func strokeOf(i int) stroke {
	return stroke{colours[i%len(colours)], []string{"none", "6 3", "2 3"}[i/len(colours)%3]}
}
