package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// sameMachine compares machines with all that they know.
var sameMachine = []cmp.Option{
	cmp.AllowUnexported(Machine{}, device{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Machine{}, "GPUError"),
}

// roundTrip writes a machine and reads it back.
func roundTrip(t *testing.T, m *Machine) *Machine {
	t.Helper()
	var first, second bytes.Buffer
	if err := m.Write(&first); err != nil {
		t.Fatal(err)
	}
	again, err := Read(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, first.Bytes())
	}
	if err := again.Write(&second); err != nil {
		t.Fatal(err)
	}
	testcmp.Equal(t, "a machine that was written twice", second.String(), first.String())
	return again
}

func TestRoundTrip(t *testing.T) {
	s := dgxServer()
	mixed := switchedLinks(12)
	mixed[3].down = true
	mixed[7].kind = nvml.NVLINK_DEVICE_TYPE_UNKNOWN
	mixed[8] = fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_GPU, peer: "0000:0f:00.0"}
	setLinks(s.Devices[0].(*dgxa100.Device), mixed)
	root := dgxTree()
	root.file("devices/"+dgxGPUs[2]+"/max_link_speed", "16.0 GT/s PCIe")
	root.file("devices/"+dgxGPUs[2]+"/current_link_width", "16")
	for what, m := range map[string]*Machine{
		"a DGX": discover(t, root, s), "without NVML": discover(t, root, noNVML()), "nothing": {},
		"GPUs without an address": {GPUs: []GPU{{Index: 0, NUMANode: 1, CPUs: []int{4, 5}}, {Index: 1, NUMANode: Unknown}}},
	} {
		again := roundTrip(t, m)
		if m.devices == nil {
			m.devices = map[string]device{}
		}
		testcmp.Equal(t, what, again, m, sameMachine...)
		if (m.GPUError == nil) != (again.GPUError == nil) {
			t.Errorf("%s: %v, read as %v", what, m.GPUError, again.GPUError)
		}
		if m.GPUError != nil && (again.GPUError.Error() != m.GPUError.Error() || !errors.Is(again.GPUError, mscclgo.KindOf(m.GPUError))) {
			t.Errorf("%s: %v, read as %v", what, m.GPUError, again.GPUError)
		}
	}
	if here, err := Discover(Options{}); err == nil {
		roundTrip(t, here)
	}
}

// TestFilesAreWritten finds that the files of testdata are as Write writes them.
func TestFilesAreWritten(t *testing.T) {
	for _, name := range machines(t) {
		file := "testdata/" + name + ".json"
		var written bytes.Buffer
		if err := machineFrom(t, name).Write(&written); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(file, written.Bytes(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		testcmp.Equal(t, file, written.String(), string(content))
	}
}

func TestBadFiles(t *testing.T) {
	head := `{"format":"mscclgo-machine","version":1,`
	for text, want := range map[string]string{
		``:    "not JSON",
		`[1]`: "it is a JSON array, not an object",
		`{"format":"mscclgo-machine","version":"1"}`:                              "its version is a JSON string",
		`{"format":"picture"}`:                                                    "format",
		`{"format":"mscclgo-machine","version":2,"quantum":true}`:                 "takes a newer",
		`{"format":"mscclgo-machine","version":0}`:                                "no version 0",
		head + `"colour":"red"}`:                                                  `unknown field "colour"`,
		head + `"gpus":[{"index":0,"wings":2}]}`:                                  `gpus[0] has an unknown field "wings"`,
		head + `"cpus":"9-3"}`:                                                    "cpus",
		head + `"cpus":"0-99999999"}`:                                             "cpus",
		head + `"numa_nodes":[{"id":1},{"id":1}]}`:                                "NUMA node 1 comes behind",
		head + `"numa_nodes":[{"id":1,"distances":[10,20]}]}`:                     "2 distances to 1 nodes",
		head + `"numa_nodes":[{"id":1,"distances":[300]}]}`:                       "300 is not a distance",
		head + `"numa_nodes":[{"id":-1}]}`:                                        "NUMA node -1",
		head + `"pci":[{"id":"somewhere"}]}`:                                      "not a PCI bus ID",
		head + `"pci":[{"id":"0000:01:00.0"},{"id":"0000:01:00.0"}]}`:             "twice",
		head + `"pci":[{"id":"0000:01:00.0","under":"pci0000:00/0000:01:00.0"}]}`: "below itself",
		head + `"pci":[{"id":"0000:01:00.0","under":"0000:02:00.0"},{"id":"0000:02:00.0","under":"0000:01:00.0"}]}`:                    "for one device and",
		head + `"pci":[{"id":"0000:01:00.0","under":"roof"}]}`:                                                                         "under",
		head + `"pci":[{"id":"0000:01:00.0","lanes":16}]}`:                                                                             "lanes",
		head + `"pci":[{"id":"0000:01:00.0","lanes":64,"gigatransfers":8}]}`:                                                           "lanes",
		head + `"pci":[{"id":"0000:01:00.0","lanes":16,"gigatransfers":7}]}`:                                                           "lanes",
		head + `"pci":[{"id":"0000:01:00.0","numa_node":-2}]}`:                                                                         "numa_node",
		head + `"pci":[{"id":"0000:01:00.0","under":"pci0000:00` + strings.Repeat("/0000:01:00.1", 70) + `"}]}`:                        "below 7",
		head + `"gpus":[{"index":0,"pci":"0000:01:00.0"}]}`:                                                                            "not among the PCI devices",
		head + `"gpus":[{"index":1},{"index":0}]}`:                                                                                     "GPU 0 comes behind",
		head + `"gpus":[{"index":0,"uuid":"12"}]}`:                                                                                     "uuid",
		head + `"gpus":[{"index":0,"model":"a\nb"}]}`:                                                                                  "model",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0-999","active":true}]}]}`:                                                   "1000 links",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"","active":true}]}]}`:                                                        "no numbers",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0-1","active":true},{"numbers":"1","active":true}]}]}`:                       "link 1 comes behind",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0","active":true,"peer":"toaster"}]}]}`:                                      "toaster",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0","active":false,"peer":"GPU"}]}]}`:                                         "only active links",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0","active":true,"version":-1}]}]}`:                                          "version -1",
		head + `"gpus":[{"index":0,"nvlinks":[{"numbers":"0","active":true,"peer":"GPU","peer_pci":"x"}]}]}`:                           "peer_pci",
		head + `"gpus":[{"index":0,"pci":"0000:01:00.0"},{"index":1,"pci":"0000:01:00.0"}],"pci":[{"id":"0000:01:00.0"}]}`:             "two GPUs",
		head + `"gpus":[{"index":0,"pci":"0000:01:00.0","cpus":"1"}],"pci":[{"id":"0000:01:00.0"}]}`:                                   "are its PCI device's",
		head + `"gpu_error":{"kind":"mood","text":"bad"}}`:                                                                             "mood",
		head + `"gpu_error":{"kind":"unsupported","text":"bad\u001b[31m"}}`:                                                            "gpu_error: text",
		head + `"gpus":[{"index":0,"model":"a\uffffb"}]}`:                                                                              "model",
		head + `"nics":[{"name":"","kind":"RoCE"}]}`:                                                                                   "no name",
		head + `"nics":[{"name":"a","kind":"pigeon"}]}`:                                                                                "pigeon",
		head + `"nics":[{"name":"a","kind":"RoCE","pci":"b"}]}`:                                                                        "pci",
		head + `"nics":[{"name":"a","kind":"RoCE","ports":[{"number":1,"gbps":-5}]}]}`:                                                 "rate",
		head + `"nics":[{"name":"a","kind":"RoCE","ports":[{"number":1,"gbps":1e300}]}]}`:                                              "rate",
		head + `"nics":[{"name":"a","kind":"RoCE","ports":[{"number":1,"gbps":1e-300}]}]}`:                                             "rate",
		head + `"gpus":[` + strings.Repeat(`{"index":0},`, 200) + `{"index":0}]}`:                                                      "201 GPUs",
		head + `"cpus":"` + strings.Repeat(" ", maxFile) + `"}`:                                                                        "more than",
		`{"format":"mscclgo-machine","version":1.5}`:                                                                                   "there is no version 1.5",
		head + `"gpus":[{"index":0},{"index":"1"}]}`:                                                                                   "gpus[1].index is a string, not a whole number",
		head + `"gpus":[{"index":1.5}]}`:                                                                                               "gpus[0].index is 1.5, not a whole number",
		head + `"gpus":[{"index":1e2}]}`:                                                                                               "gpus[0].index is 1e2, not a whole number in digits",
		head + `"gpus":[{"index":99999999999999999999}]}`:                                                                              "gpus[0].index is 99999999999999999999, which is out of range",
		head + `"gpus":[{"index":null}]}`:                                                                                              "gpus[0].index is null, not a whole number",
		head + `"gpus":[null]}`:                                                                                                        "gpus[0] is null, not an object",
		head + `"gpus":{}}`:                                                                                                            "gpus is an object, not an array",
		head + `"gpus":[{"index":0,"model":true}]}`:                                                                                    "gpus[0].model is true, not a string",
		head + `"gpus":[{"nvlinks":[{"numbers":"0"},{"numbers":5}]}]}`:                                                                 "gpus[0].nvlinks[1].numbers is a number, not a string",
		head + `"gpus":[{"nvlinks":[{"active":"yes"}]}]}`:                                                                              "gpus[0].nvlinks[0].active is a string, not true or false",
		head + `"gpus":[{"index":0,"numa_node":[0]}]}`:                                                                                 "gpus[0].numa_node is an array, not a whole number",
		head + `"numa_nodes":[{"id":0,"distances":[10,"20"]}]}`:                                                                        "numa_nodes[0].distances[1] is a string",
		head + `"nics":[{"name":"a","ports":[{"gbps":1e400}]}]}`:                                                                       "nics[0].ports[0].gbps is 1e400, which is out of range",
		head + `"gpus":[],"gpus":[{"index":0}]}`:                                                                                       `it has the field "gpus" twice`,
		head + `"gpus":[{"index":0,"index":1}]}`:                                                                                       `gpus[0] has the field "index" twice`,
		head + `"GPUs":[]}`:                                                                                                            `it has an unknown field "GPUs"`,
		head + `"nics":[{"name":"a","kind":"RoCE"},{"name":"a","kind":"InfiniBand"}]}`:                                                 "two NICs have the name a",
		head + `"gpus":[{"index":0,"uuid":"` + strings.Repeat("a0", 16) + `"},{"index":1,"uuid":"` + strings.Repeat("A0", 16) + `"}]}`: "two GPUs have the uuid a0a0",
		head + `"cpus":""} {"cpus":""}`:                                                                                                "not JSON",
	} {
		_, err := Read(strings.NewReader(text))
		if want == "takes a newer" {
			want = "take a newer mscclgo"
		}
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
			t.Errorf("%.120s: %v; want %q", text, err, want)
		}
	}
	if _, err := Read(failing{}); !errors.Is(err, mscclgo.ErrSystem) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

// failing cannot be read.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestBounded has lists of CPUs that would be many gigabytes.
func TestBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"format":"mscclgo-machine","version":1,"pci":[`)
	for i := range 5000 {
		if i > 0 {
			b.WriteByte(',')
		}
		id, _ := json.Marshal(strings.Replace("0000:00:00.0", "0000:00", string("0123456789abcdef"[i>>12&15])+string("0123456789abcdef"[i>>8&15])+string("0123456789abcdef"[i>>4&15])+string("0123456789abcdef"[i&15])+":00", 1))
		list, _ := json.Marshal(CPUList([]int{i}) + ",60000-65535")
		b.WriteString(`{"id":` + string(id) + `,"cpus":` + string(list) + `}`)
	}
	b.WriteString(`]}`)
	if _, err := Read(strings.NewReader(b.String())); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "all lists") {
		t.Errorf("%v", err)
	}
}

// FuzzRead reads anything; a machine that it takes can be asked for what joins its GPUs, and
// written so that it is read as the same.
func FuzzRead(f *testing.F) {
	// Small ones: of larger ones the fuzzer does little but to make them smaller.
	for _, text := range []string{
		`"gpus":[{"index":0},{"index":3}]`,
		`"cpus":"0-3","numa_nodes":[{"id":0,"cpus":"0-3","distances":[10]}]`,
		`"gpus":[{"index":0,"pci":"0000:01:00.0","nvlinks":[{"numbers":"0-3","active":true,"peer":"switch"}]}],"pci":[{"id":"0000:01:00.0","under":"pci0000:00"}]`,
		`"nics":[{"name":"a","kind":"RoCE","ports":[{"number":1,"active":true,"gbps":100}]}]`,
	} {
		f.Add([]byte(`{"format":"mscclgo-machine","version":1,` + text + `}`))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := Read(bytes.NewReader(content))
		if err != nil {
			return
		}
		if len(m.GPUs)+len(m.NICs) < 12 {
			m.Internal().Fabric(1)
			m.Internal().Fabric(2)
		}
		roundTrip(t, m)
	})
}
