package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/bench"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/machine"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/model"
	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/bytesize"
	"github.com/mscclgo/mscclgo/topology"
)

// mostHosts bounds -hosts.
const mostHosts = 1 << 20

// topoFlags are the flags of topo.
type topoFlags struct {
	load, save, svg, plot, kind string
	hosts                       int
	json, predict               bool
	kinds                       []collective.Kind
}

func runTopo(c *call) error {
	var f topoFlags
	c.flags.StringVar(&f.load, "load", "", "`file` of -save with the machine, in the place of this one")
	c.flags.StringVar(&f.save, "save", "", "`file` that gets the machine, for -load and topology.Read")
	c.flags.StringVar(&f.svg, "svg", "", "`file` that gets a picture of the machine")
	c.flags.BoolVar(&f.json, "json", false, "print JSON: the machine as -save writes it, its rings and the NICs of its GPUs")
	c.flags.BoolVar(&f.predict, "predict", false, "print what the model of time predicts for collectives on the machine's GPUs")
	c.flags.IntVar(&f.hosts, "hosts", 1, "`number` of machines like this one that rings and predictions are for")
	c.flags.StringVar(&f.kind, "kind", "all-reduce", "`collectives` of -predict, with commas between, or \"all\"")
	c.flags.StringVar(&f.plot, "plot", "", "`file` that gets an SVG of all-reduces on 1 to 1250 such machines, as the model predicts them")
	if err := c.parseOnly(); err != nil {
		return err
	}
	named := false
	c.flags.Visit(func(given *flag.Flag) { named = named || given.Name == "kind" })
	if named && !f.predict {
		return &usageError{"-kind is for -predict"}
	}
	if err := f.check(); err != nil {
		return &usageError{err.Error()}
	}
	m, err := f.machine()
	if err != nil {
		return err
	}
	for _, file := range []struct {
		flag, name string
		write      func(io.Writer) error
	}{
		{"save", f.save, m.Write},
		{"svg", f.svg, func(w io.Writer) error { _, err := w.Write(machine.SVG(m)); return err }},
		{"plot", f.plot, func(w io.Writer) error { return plotPredictions(w, m) }},
	} {
		if file.name == "" {
			continue
		}
		if err := writeFile(file.name, file.write); err != nil {
			return fmt.Errorf("-%s: %w", file.flag, err)
		}
	}
	switch {
	case f.json:
		return f.printJSON(c.stdout, m)
	case f.predict:
		return f.printPredictions(c.stdout, m)
	}
	return f.print(c.stdout, m)
}

// check returns the error of flags that do not go together.
func (f *topoFlags) check() error {
	switch {
	case f.hosts < 1 || f.hosts > mostHosts:
		return fmt.Errorf("-hosts has to be from 1 to %d", mostHosts)
	case f.json && f.predict:
		return errors.New("-predict prints no JSON")
	}
	if err := errors.Join(endsInSVG("svg", f.svg), endsInSVG("plot", f.plot), namedTwice(f.save, f.svg, f.plot)); err != nil {
		return err
	}
	if f.kind == "all" {
		f.kinds = collective.Kinds()
		return nil
	}
	for _, name := range list(f.kind) {
		kind, err := collective.ParseKind(name)
		if err != nil {
			return fmt.Errorf("-kind: %w", err)
		}
		f.kinds = append(f.kinds, kind)
	}
	if len(f.kinds) == 0 {
		return errors.New("-kind names no collective")
	}
	return nil
}

// endsInSVG returns the error of the file of a flag, if its name is not a picture's.
func endsInSVG(name, file string) error {
	if file == "" || filepath.Ext(file) == ".svg" {
		return nil
	}
	return fmt.Errorf("-%s draws SVG, so the file's name ends in .svg, not as %q does", name, file)
}

// namedTwice returns the error of a file that would be written twice.
func namedTwice(files ...string) error {
	seen := map[string]bool{}
	for _, name := range files {
		path := filepath.Clean(name)
		if name != "" && seen[path] {
			return fmt.Errorf("two flags name the file %s", name)
		}
		seen[path] = seen[path] || name != "" // the path of no name is "."
	}
	return nil
}

// machine returns this machine, or the file's.
func (f *topoFlags) machine() (*topology.Machine, error) {
	if f.load == "" {
		return topology.Discover(topology.Options{})
	}
	r, err := os.Open(f.load)
	if err != nil {
		return nil, fmt.Errorf("-load: %w", err)
	}
	defer r.Close()
	m, err := topology.Read(r)
	if err != nil {
		return nil, fmt.Errorf("-load %s: %w", f.load, err)
	}
	return m, nil
}

// writeFile writes a file in the place of an older one, which stays if write fails.
func writeFile(name string, write func(io.Writer) error) error {
	var b strings.Builder
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(b.String()), 0o666)
}

// print prints the machine and, if there are GPUs, its rings.
func (f *topoFlags) print(w io.Writer, m *topology.Machine) error {
	text := machine.Text(m)
	if len(m.GPUs) > 0 {
		rings, err := machine.RingsText(m, f.hosts)
		if err != nil {
			return err
		}
		text += "\n" + rings
	}
	_, err := io.WriteString(w, text)
	return err
}

func (f *topoFlags) printJSON(w io.Writer, m *topology.Machine) error {
	type ring struct {
		GPUs      []int   `json:"gpus"`
		Path      string  `json:"path"`
		Bandwidth float64 `json:"gbytes_per_s"`
		In        string  `json:"in,omitempty"`
		Out       string  `json:"out,omitempty"`
	}
	type served struct {
		GPU       int     `json:"gpu"`
		NIC       string  `json:"nic"`
		Path      string  `json:"path"`
		Bandwidth float64 `json:"gbytes_per_s"`
		Sharing   int     `json:"shared_by"`
	}
	out := struct {
		Machine *topology.Machine `json:"machine"`
		Hosts   int               `json:"hosts"`
		Rings   []ring            `json:"rings"`
		NICs    []served          `json:"nics_of_gpus"`
	}{Machine: m, Hosts: f.hosts, Rings: []ring{}, NICs: []served{}}
	if len(m.GPUs) > 0 {
		rings, err := machine.Rings(m, f.hosts)
		if err != nil {
			return err
		}
		for _, r := range rings {
			one := ring{Path: r.Path.String(), Bandwidth: r.Bandwidth, In: r.In, Out: r.Out}
			for _, gpu := range r.GPUs {
				one.GPUs = append(one.GPUs, m.GPUs[gpu].Index)
			}
			out.Rings = append(out.Rings, one)
		}
	}
	for _, s := range m.Internal().Serving() {
		out.NICs = append(out.NICs, served{m.GPUs[s.GPU].Index, s.Near.Name, s.Near.Path.String(), s.Near.Bandwidth, s.Sharing})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// printPredictions prints rings, NICs, and the predicted time of each collective by size.
func (f *topoFlags) printPredictions(w io.Writer, m *topology.Machine) error {
	fabric, err := model.FabricOf(m, f.hosts)
	if err != nil {
		return err
	}
	var b strings.Builder
	rings, err := machine.RingsText(m, f.hosts)
	if err != nil {
		return err
	}
	b.WriteString(rings)
	notBuilt := false
	for _, kind := range f.kinds {
		fmt.Fprintf(&b, "\n%v, %s on %s, predicted us; [ ] is the least of what is built\n", kind, show.Count(fabric.Ranks, "rank"), show.Count(fabric.Hosts, "host"))
		names := fabric.Predict(kind, 1)
		head := []string{"size"}
		for _, p := range names {
			if !p.Built {
				p.Algorithm += "*"
				notBuilt = true
			}
			head = append(head, p.Algorithm)
		}
		rows := [][]string{head}
		for size := uint64(1 << 10); size <= 1<<30; size *= 4 {
			all := fabric.Predict(kind, size)
			best := -1
			for i, p := range all {
				if p.Built && (best < 0 || p.Time < all[best].Time) {
					best = i
				}
			}
			row := []string{bytesize.Format(size)}
			for i, p := range all {
				time := micros(p.Time)
				if i == best {
					time = "[" + time + "]"
				}
				row = append(row, time)
			}
			rows = append(rows, row)
		}
		show.Table(&b, rows, tabwriter.AlignRight)
	}
	if notBuilt {
		b.WriteString("\n* not built, for comparison\n")
	}
	if fabric.Path > topology.PathNVL || fabric.Hosts > 1 {
		b.WriteString("\nTimes over PCIe and between hosts are estimates; those over NVLink were set by measurements. See docs/PATHS.md.\n")
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// micros writes a time in us with four digits.
func micros(t time.Duration) string {
	us := float64(t) / 1000
	switch {
	case us < 100:
		return fmt.Sprintf("%.2f", us)
	case us < 1000:
		return fmt.Sprintf("%.1f", us)
	}
	return fmt.Sprintf("%.0f", us)
}

// plotPredictions draws all-reduces of four sizes on up to 1250 machines.
func plotPredictions(w io.Writer, m *topology.Machine) error {
	hosts := []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1250}
	names := []struct{ algorithm, name string }{
		{"rings", "rings*"}, {"tree", "two trees*"}, {"hier", "hier"},
		{"hierRing", "hier, by ring"}, {"hierTree", "hier, by trees"},
	}
	fabrics := make([]model.Fabric, len(hosts))
	for i, h := range hosts {
		var err error
		if fabrics[i], err = model.FabricOf(m, h); err != nil {
			return err
		}
	}
	var charts []bench.Chart
	for _, sizes := range [][2]uint64{{64 << 10, 1 << 20}, {64 << 20, 1 << 30}} {
		chart := bench.Chart{
			Heading: "all-reduce, predicted", Remark: fmt.Sprintf("%d GPUs a host; * not built", len(m.GPUs)), Across: "ranks",
		}
		for i, size := range sizes {
			chart.Labels[i] = fmt.Sprintf("%s: time, ms", bytesize.Format(size))
		}
		for _, n := range names {
			c := bench.Curve{Name: n.name}
			for _, fabric := range fabrics {
				for i, size := range sizes {
					t, ok := fabric.Time(collective.AllReduce, n.algorithm, size)
					if ok && t < math.MaxInt64 {
						c.Points[i] = append(c.Points[i], bench.Point{X: float64(fabric.Ranks), Y: float64(t) / 1e6})
					}
				}
			}
			chart.Curves = append(chart.Curves, c)
		}
		charts = append(charts, chart)
	}
	return bench.PlotCharts(w, charts)
}
