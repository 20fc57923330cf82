package topology

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
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
	d := parseSVG(t, discover(t, dgxTree(), dgxServer()).SVG())
	for _, text := range []string{"GPU 0", "GPU 7", "0000:bd:00.0", "mlx5_10", "eno1", "NUMA node 1, CPUs 32-63,96-127", "NVSwitch"} {
		d.has(t, 1, text)
	}
	d.has(t, 8, "NV12")
	if d.elements["path"] != 8 {
		t.Errorf("%d lines, want one from each GPU to the switches", d.elements["path"])
	}
}

// TestSVGDirectLinks draws GPUs that are linked to each other.
func TestSVGDirectLinks(t *testing.T) {
	s := dgxServer()
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 2, nvml.SUCCESS }
	ids := []string{"0000:07:00.0", "0000:0f:00.0"}
	for i := range 2 {
		setLinks(s.Devices[i].(*dgxa100.Device), []fakeLink{{kind: nvml.NVLINK_DEVICE_TYPE_GPU, peer: ids[1-i]}})
	}
	d := parseSVG(t, discover(t, dgxTree(), s).SVG())
	d.has(t, 0, "NVSwitch")
	d.has(t, 1, "NV1")
	d.has(t, 1, "GPU 0 and GPU 1: NV1")
}

// TestSVGOfLittle draws a machine of which little is known, with a name that is no XML.
func TestSVGOfLittle(t *testing.T) {
	m := discover(t, newTree(), noNVML())
	m.GPUs = []GPU{{Model: "NVIDIA <model> & \"more\" of it", NUMANode: Unknown}}
	d := parseSVG(t, m.SVG())
	d.has(t, 1, "CPUs -")
	d.has(t, 1, "<model> & \"more\" of it")
}
