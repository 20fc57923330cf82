package machine

import (
	"bytes"
	"fmt"
	"html"
	"strings"

	"github.com/mscclgo/mscclgo/topology"
)

// Sizes in the picture, in pixels.
const (
	boxWidth, boxHeight = 140, 48
	gap                 = 14
	titleHeight         = 26
	cardRow             = titleHeight + gap                // the top of NICs
	gpuRow              = cardRow + boxHeight + 3*gap      // and of GPUs
	nodeHeight          = gpuRow + boxHeight + gap         //
	linkRow             = nodeHeight + 4*gap               // where NVLinks meet
	pictureHeight       = gap + linkRow + titleHeight + 60 // with room for curves
)

// SVG returns a picture of the machine, in the format of that name: NUMA nodes with their
// CPUs, NICs and GPUs, and the NVLinks.
func SVG(m *topology.Machine) []byte {
	p := &picture{places: map[string]int{}}
	left := gap
	for _, n := range partsOf(m) {
		left += p.node(left, n) + gap
	}
	p.links(m)
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="11" text-anchor="middle">`+"\n", left, pictureHeight)
	out.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	out.Write(p.out.Bytes())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// part is a column of the picture: a NUMA node, or the devices of none.
type part struct {
	title string
	gpus  []topology.GPU
	nics  []topology.NIC
}

func partsOf(m *topology.Machine) (parts []part) {
	index := map[int]int{}
	for _, n := range m.Nodes {
		index[n.ID] = len(parts)
		parts = append(parts, part{title: fmt.Sprintf("NUMA node %d, CPUs %s", n.ID, orDash(topology.CPUList(n.CPUs)))})
	}
	if len(parts) == 0 {
		index[topology.Unknown] = 0
		parts = append(parts, part{title: "CPUs " + orDash(topology.CPUList(m.CPUs))})
	}
	of := func(node int) *part {
		i, known := index[node]
		if !known {
			i = len(parts)
			index[node] = i
			parts = append(parts, part{title: "NUMA node unknown"})
		}
		return &parts[i]
	}
	for _, g := range m.GPUs {
		p := of(g.NUMANode)
		p.gpus = append(p.gpus, g)
	}
	for _, n := range m.NICs {
		p := of(n.NUMANode)
		p.nics = append(p.nics, n)
	}
	return parts
}

// picture collects what is drawn.
type picture struct {
	out    bytes.Buffer
	places map[string]int // the middle of each GPU, by bus ID
}

// node draws a column, and returns its width.
func (p *picture) node(left int, n part) int {
	width := max(len(n.gpus), len(n.nics), 2)*(boxWidth+gap) + gap
	p.box(left, gap, width, nodeHeight, "#f4f4f4", "")
	p.text(left+width/2, gap+titleHeight-8, n.title)
	for i, c := range n.nics {
		color := "#dddddd"
		if c.Active() {
			color = "#cfe8cf"
		}
		p.box(left+gap+i*(boxWidth+gap), gap+cardRow, boxWidth, boxHeight, color, strings.Join([]string{shorten(c.Name), c.Kind.String(), c.PCIBusID}, "\n"))
	}
	for i, g := range n.gpus {
		x := left + gap + i*(boxWidth+gap)
		p.box(x, gap+gpuRow, boxWidth, boxHeight, "#cfdff5", strings.Join([]string{fmt.Sprintf("GPU %d", g.Index), shorten(strings.TrimPrefix(g.Model, "NVIDIA ")), g.PCIBusID}, "\n"))
		p.places[g.PCIBusID] = x + boxWidth/2
	}
	return width
}

// shorten returns as much of a name as a box is wide.
func shorten(name string) string {
	if r := []rune(name); len(r) > 22 {
		return string(r[:21]) + "…"
	}
	return name
}

// links draws the NVLinks: to the switches, or from GPU to GPU.
func (p *picture) links(m *topology.Machine) {
	const bottom = gap + gpuRow + boxHeight
	least, most := 0, 0
	for i, a := range m.GPUs {
		switched := 0
		for j, b := range m.GPUs {
			if i == j || a.PCIBusID == "" || b.PCIBusID == "" {
				continue
			}
			r := m.Internal().Route(a.PCIBusID, b.PCIBusID)
			from, to := p.places[a.PCIBusID], p.places[b.PCIBusID]
			switch {
			case r.Switched:
				switched = max(switched, r.NVLinks)
			case r.NVLinks > 0 && i < j:
				depth := linkRow + 60*(j-i)/len(m.GPUs)
				fmt.Fprintf(&p.out, `<path d="M%d %d Q%d %d %d %d" fill="none" stroke="#2a6" stroke-width="2"><title>GPU %d and GPU %d: %v</title></path>`+"\n",
					from, bottom, (from+to)/2, gap+depth, to, bottom, a.Index, b.Index, r)
				p.text((from+to)/2, (bottom+gap+depth)/2-4, r.String())
			}
		}
		if switched > 0 {
			x := p.places[a.PCIBusID]
			fmt.Fprintf(&p.out, `<path d="M%d %d V%d" stroke="#2a6" stroke-width="2"/>`+"\n", x, bottom, gap+linkRow)
			p.text(x+18, gap+linkRow-gap, fmt.Sprintf("NV%d", switched))
			if least == 0 || x < least {
				least = x
			}
			most = max(most, x)
		}
	}
	if most > 0 {
		p.box(least-boxWidth/2, gap+linkRow, most-least+boxWidth, titleHeight, "#bfe5cc", "NVSwitch")
	}
}

// box draws a rectangle with lines of text.
func (p *picture) box(x, y, width, height int, color, text string) {
	fmt.Fprintf(&p.out, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="#666"/>`+"\n", x, y, width, height, color)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		p.text(x+width/2, y+height/2+4+14*i-7*(len(lines)-1), line)
	}
}

func (p *picture) text(x, y int, text string) {
	fmt.Fprintf(&p.out, `<text x="%d" y="%d">%s</text>`+"\n", x, y, html.EscapeString(text))
}
