package machine

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/topology"
)

// Text returns tables for people to read. The last one has the connections of GPUs and
// NICs on PCI in the manner of nvidia-smi topo.
func Text(m *topology.Machine) string {
	var b strings.Builder
	printNodes(&b, m)
	printGPUs(&b, m)
	printNICs(&b, m)
	printPaths(&b, m)
	return b.String()
}

func printNodes(b *strings.Builder, m *topology.Machine) {
	rows := [][]string{{"NUMA", "CPUs", "distances"}}
	for _, n := range m.Nodes {
		rows = append(rows, []string{strconv.Itoa(n.ID), orDash(topology.CPUList(n.CPUs)),
			orDash(strings.Trim(fmt.Sprint(n.Distances), "[]"))})
	}
	if len(m.Nodes) == 0 {
		rows = append(rows, []string{"-", orDash(topology.CPUList(m.CPUs)), "-"})
	}
	show.Table(b, rows, 0)
}

func printGPUs(b *strings.Builder, m *topology.Machine) {
	if len(m.GPUs) > 0 {
		rows := [][]string{{"\nGPU", "PCI", "NUMA", "NVLinks", "model"}}
		for _, g := range m.GPUs {
			rows = append(rows, []string{strconv.Itoa(g.Index), orDash(g.PCIBusID), node(g.NUMANode),
				describeLinks(g.NVLinks), orDash(g.Model)})
		}
		show.Table(b, rows, 0)
	}
	if m.GPUError != nil {
		fmt.Fprintf(b, "\n%v\n", m.GPUError)
	}
}

func printNICs(b *strings.Builder, m *topology.Machine) {
	if len(m.NICs) == 0 {
		return
	}
	rows := [][]string{{"\nNIC", "PCI", "NUMA", "kind", "ports", "interfaces"}}
	for _, n := range m.NICs {
		var ports []string
		for _, p := range n.Ports {
			text := fmt.Sprintf("%d %s", p.Number, strings.ToLower(orDash(p.State)))
			if p.Gbps > 0 {
				text += fmt.Sprintf(" %g Gb/s", p.Gbps)
			}
			ports = append(ports, text)
		}
		rows = append(rows, []string{n.Name, orDash(n.PCIBusID), node(n.NUMANode), n.Kind.String(),
			orDash(strings.Join(ports, ", ")), orDash(strings.Join(n.Interfaces, ", "))})
	}
	show.Table(b, rows, 0)
}

// printPaths prints the matrix of the connections of GPUs and NICs.
func printPaths(b *strings.Builder, m *topology.Machine) {
	var names, ids []string
	for _, g := range m.GPUs {
		if g.PCIBusID != "" {
			names, ids = append(names, fmt.Sprintf("GPU%d", g.Index)), append(ids, g.PCIBusID)
		}
	}
	for _, n := range m.NICs {
		if m.Internal().Route(n.PCIBusID, n.PCIBusID).Path == topology.PathSelf {
			names, ids = append(names, n.Name), append(ids, n.PCIBusID)
		}
	}
	if len(ids) < 2 {
		return
	}
	for _, one := range []struct {
		title string
		text  func(topology.Route) string
	}{{"\npath", topology.Route.String}, {"\nGB/s", func(r topology.Route) string { return bandwidth(r.Bandwidth) }}} {
		rows := [][]string{append([]string{one.title}, names...)}
		for i, a := range ids {
			row := []string{names[i]}
			for _, to := range ids {
				row = append(row, one.text(m.Internal().Route(a, to)))
			}
			rows = append(rows, row)
		}
		show.Table(b, rows, 0)
	}
}

// RingsText returns a table of the machine's rings (see [Rings]) and one of the NICs
// that serve the GPUs, for people to read.
//
// Errors: as for Rings.
func RingsText(m *topology.Machine, hosts int) (string, error) {
	rings, err := Rings(m, hosts)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if len(rings) > 0 {
		rows := [][]string{{"ring", "path", "GB/s", "in", "out", "GPUs"}}
		for i, r := range rings {
			var gpus []string
			for _, gpu := range r.GPUs {
				gpus = append(gpus, strconv.Itoa(m.GPUs[gpu].Index))
			}
			rows = append(rows, []string{strconv.Itoa(i), r.Path.String(), bandwidth(r.Bandwidth), orDash(r.In), orDash(r.Out), strings.Join(gpus, " ")})
		}
		show.Table(&b, rows, 0)
	}
	if served := m.Internal().Serving(); len(served) > 0 {
		rows := [][]string{{"\nGPU", "NIC", "path", "GB/s", "shared by"}}
		for _, s := range served {
			rows = append(rows, []string{strconv.Itoa(m.GPUs[s.GPU].Index), s.Near.Name, s.Near.Path.String(), bandwidth(s.Near.Bandwidth), strconv.Itoa(s.Sharing)})
		}
		show.Table(&b, rows, 0)
	}
	return b.String(), nil
}

// bandwidth writes GB/s with three digits.
func bandwidth(v float64) string {
	if v == 0 {
		return "-"
	}
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// describeLinks summarizes links: "12 of version 3 to switch, 1 down".
func describeLinks(links []topology.Link) string {
	type group struct {
		version int
		peer    topology.Peer
	}
	count := map[group]int{}
	var order []group
	down := 0
	for _, l := range links {
		if !l.Active {
			down++
			continue
		}
		g := group{l.Version, l.Peer}
		if count[g] == 0 {
			order = append(order, g)
		}
		count[g]++
	}
	var parts []string
	for _, g := range order {
		text := strconv.Itoa(count[g])
		if g.version > 0 {
			text += fmt.Sprintf(" of version %d", g.version)
		}
		parts = append(parts, fmt.Sprintf("%s to %v", text, g.peer))
	}
	if down > 0 {
		parts = append(parts, fmt.Sprintf("%d down", down))
	}
	return orDash(strings.Join(parts, ", "))
}

func node(n int) string {
	if n == topology.Unknown {
		return "-"
	}
	return strconv.Itoa(n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
