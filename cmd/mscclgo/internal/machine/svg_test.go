package machine

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/topology"
)

// drawing is what a picture shows: its texts, and how many elements it has of each kind.
type drawing struct {
	texts    map[string]int
	elements map[string]int
}

// parseSVG checks that the picture is XML, and that everything lies inside it.
func parseSVG(t *testing.T, svg []byte) drawing {
	t.Helper()
	d := drawing{map[string]int{}, map[string]int{}}
	var width, height int
	for in := xml.NewDecoder(strings.NewReader(string(svg))); ; {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			d.elements[token.Name.Local]++
			at := map[string]int{}
			for _, a := range token.Attr {
				at[a.Name.Local], _ = strconv.Atoi(a.Value)
			}
			if token.Name.Local == "svg" {
				width, height = at["width"], at["height"]
			} else if at["x"] < 0 || at["y"] < 0 || at["x"]+at["width"] > width || at["y"]+at["height"] > height {
				t.Errorf("a %s at %v lies outside %d x %d", token.Name.Local, at, width, height)
			}
		case xml.CharData:
			if text := strings.TrimSpace(string(token)); text != "" {
				d.texts[text]++
			}
		}
	}
}

func (d drawing) has(t *testing.T, n int, text string) {
	t.Helper()
	if d.texts[text] != n {
		t.Errorf("the picture has %q %d times, want %d: %v", text, d.texts[text], n, d.texts)
	}
}

func TestSVG(t *testing.T) {
	d := parseSVG(t, SVG(read(t, "dgx")))
	for _, text := range []string{"GPU 0", "GPU 7", "0000:bd:00.0", "mlx5_10", "eno1", "NUMA node 1, CPUs 32-63,96-127", "NVSwitch"} {
		d.has(t, 1, text)
	}
	d.has(t, 7, "NV12")
	d.has(t, 1, "NV11")
	if d.elements["path"] != 8 {
		t.Errorf("%d lines, want one from each GPU to the switches", d.elements["path"])
	}
}

// TestSVGDirectLinks draws GPUs that are linked to each other.
func TestSVGDirectLinks(t *testing.T) {
	d := parseSVG(t, SVG(read(t, "direct")))
	d.has(t, 0, "NVSwitch")
	d.has(t, 1, "NV1")
	d.has(t, 1, "GPU 0 and GPU 1: NV1")
}

// TestSVGOfLittle draws a machine of which little is known, with a name that is no XML.
func TestSVGOfLittle(t *testing.T) {
	m := &topology.Machine{GPUs: []topology.GPU{{Model: "NVIDIA <model> & \"more\" of it", NUMANode: topology.Unknown}}}
	d := parseSVG(t, SVG(m))
	d.has(t, 1, "CPUs -")
	d.has(t, 1, "<model> & \"more\" of it")
}
