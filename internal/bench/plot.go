package bench

import (
	"fmt"
	"image/color"
	"os"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/mscclgo/mscclgo/collective"
)

// Plot draws latency and bus bandwidth against size as a PNG: a row for each
// collective and place, a line for each algorithm and each other library. What
// -algo auto chose is one line.
func Plot(file string, results []Result) error {
	tiles := [][]*plot.Plot{}
	for start := 0; start < len(results); {
		end := start + 1
		for end < len(results) && results[end].Collective == results[start].Collective && results[end].Place == results[start].Place {
			end++
		}
		row, err := plotCollective(results[start:end])
		if err != nil {
			return err
		}
		tiles = append(tiles, row)
		start = end
	}
	const width, height, pad = 14 * vg.Centimeter, 8 * vg.Centimeter, 3 * vg.Millimeter
	image := vgimg.New(2*width, vg.Length(len(tiles))*height)
	canvas := draw.New(image)
	grid := draw.Tiles{
		Rows: len(tiles), Cols: 2, PadX: pad, PadY: pad, PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: 2 * pad,
	}
	for y, row := range plot.Align(tiles, grid, canvas) {
		for x, tile := range row {
			tiles[y][x].Draw(tile)
		}
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: image}).WriteTo(w); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// line is what a plot shows of one contestant: a point for each size.
type line struct {
	name   string
	micros plotter.XYs
	busbw  plotter.XYs
}

// add takes in a point.
func (l *line) add(r *Result, t time.Duration) {
	if t <= 0 {
		return
	}
	size := float64(r.Bytes)
	l.micros = append(l.micros, plotter.XY{X: size, Y: micros(t)})
	l.busbw = append(l.busbw, plotter.XY{X: size, Y: size / float64(t.Nanoseconds()) * r.bus})
}

// linesOf sorts the results of a collective into lines. Sizes with one result
// each are one line, whichever algorithms were chosen.
func linesOf(results []Result) []*line {
	var lines []*line
	of := func(name string) *line {
		i := slices.IndexFunc(lines, func(l *line) bool { return l.name == name })
		if i < 0 {
			lines = append(lines, &line{name: name})
			i = len(lines) - 1
		}
		return lines[i]
	}
	several := slices.ContainsFunc(results[1:], func(r Result) bool { return r.Bytes == results[0].Bytes })
	for i := range results {
		r := &results[i]
		name := "mscclgo"
		if several {
			name = r.Algorithm
		}
		of(name).add(r, r.Time.Median)
		if i == 0 || results[i-1].Bytes != r.Bytes {
			for _, o := range r.Others {
				of(o.Name).add(r, o.Time.Median)
			}
		}
	}
	return lines
}

// plotCollective draws latency and bus bandwidth of one collective.
func plotCollective(results []Result) ([]*plot.Plot, error) {
	latency, bandwidth := plot.New(), plot.New()
	first := results[0]
	place := map[string]string{"in": "in place", "out": "out of place"}[first.Place]
	latency.Title.Text = fmt.Sprintf("%s, %d ranks, %s, %s", first.Collective, first.Ranks, first.Type, place)
	bandwidth.Title.Text = first.Device
	if first.Emulated {
		bandwidth.Title.Text = "emulated: times mean nothing"
	}
	latency.Y.Label.Text, bandwidth.Y.Label.Text = "microseconds", "bus bandwidth, GB/s"
	latency.Y.Scale, latency.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	bandwidth.Y.Min = 0
	for i, l := range linesOf(results) {
		for p, points := range map[*plot.Plot]plotter.XYs{latency: l.micros, bandwidth: l.busbw} {
			if len(points) == 0 {
				continue
			}
			drawn, marks, err := plotter.NewLinePoints(points)
			if err != nil {
				return nil, err
			}
			drawn.Color, marks.Color = colours[i%len(colours)], colours[i%len(colours)]
			p.Add(drawn, marks)
			p.Legend.Add(l.name, drawn, marks)
		}
	}
	for _, p := range []*plot.Plot{latency, bandwidth} {
		p.X.Label.Text, p.X.Scale, p.X.Tick.Marker = "bytes", plot.LogScale{}, plot.TickerFunc(sizeTicks)
		p.Legend.Top, p.Legend.Left = true, true
		p.Add(plotter.NewGrid())
	}
	return []*plot.Plot{latency, bandwidth}, nil
}

// sizeTicks marks powers of four.
func sizeTicks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for size := 1.0; size <= high && size < maxSize; size *= 4 {
		if size >= low {
			ticks = append(ticks, plot.Tick{Value: size, Label: collective.FormatSize(uint64(size))})
		}
	}
	return ticks
}

// colours are told apart by most who see colours differently (Okabe and Ito,
// "Color Universal Design", 2008).
var colours = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{230, 159, 0, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{0, 0, 0, 255},
}
