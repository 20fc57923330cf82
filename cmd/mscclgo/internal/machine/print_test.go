package machine

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/topology"
)

var update = flag.Bool("update", false, "write the texts of testdata anew")

// TestMachines compares what is printed about each machine with a text that people can read.
func TestMachines(t *testing.T) {
	files, err := filepath.Glob("../../../../topology/testdata/*.json")
	if err != nil || len(files) < 6 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range append(files, "dgx.json") {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		m := read(t, name)
		var b strings.Builder
		b.WriteString(Text(m))
		for _, hosts := range []string{"1 host", "2 hosts"} {
			b.WriteString("\n" + hosts + ":\n")
			text, err := RingsText(m, int(hosts[0]-'0'))
			if err != nil {
				text = err.Error() + "\n"
			}
			b.WriteString(text)
		}
		file = "testdata/" + name + ".txt"
		if *update {
			testerr.Check(t, os.WriteFile(file, []byte(b.String()), 0o666))
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v; go test ./cmd/mscclgo/internal/machine -update writes it", err)
		}
		testcmp.Equal(t, name, b.String(), string(want))
	}
}

// TestText prints links of several kinds, and why there are no GPUs.
func TestText(t *testing.T) {
	links := []topology.Link{
		{Active: true, Version: 3, Peer: topology.PeerGPU}, {Active: true, Version: 3, Peer: topology.PeerCPU},
		{Active: true, Version: 3}, {Active: true, Version: 3}, {Version: 3},
	}
	const want = "1 of version 3 to GPU, 1 of version 3 to CPU, 2 of version 3 to unknown, 1 down"
	if got := describeLinks(links); got != want {
		t.Errorf("printed as %q, want %q", got, want)
	}
	if text := Text(&topology.Machine{GPUError: errors.New("no driver")}); !strings.Contains(text, "no driver") {
		t.Errorf("printed:\n%s", text)
	}
}

// FuzzMachine prints and draws any machine that can be read, and looks for its rings.
func FuzzMachine(f *testing.F) {
	for _, text := range []string{
		`"gpus":[{"index":0},{"index":3}]`,
		`"gpus":[{"index":0,"pci":"0000:01:00.0","nvlinks":[{"numbers":"0-3","active":true,"peer":"switch"}]}],"pci":[{"id":"0000:01:00.0","under":"pci0000:00"}]`,
		`"nics":[{"name":"a","kind":"RoCE","ports":[{"number":1,"active":true,"gbps":100}]}]`,
	} {
		f.Add(`{"format":"mscclgo-machine","version":1,` + text + `}`)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := topology.Read(strings.NewReader(text))
		if err != nil || len(m.GPUs)+len(m.NICs) >= 12 {
			return
		}
		Text(m)
		SVG(m)
		RingsText(m, 1)
		RingsText(m, 2)
	})
}
