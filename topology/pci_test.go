package topology

import (
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

func TestNormalBusID(t *testing.T) {
	for text, want := range map[string]string{
		"0000:1b:00.0":     "0000:1b:00.0",
		"00000000:1B:00.0": "0000:1b:00.0",
		"1b:00.0":          "0000:1b:00.0",
		"10000:01:1f.7":    "10000:01:1f.7",
		"0001:00:00.0":     "0001:00:00.0",
	} {
		if got, ok := normalBusID(text); !ok || got != want {
			t.Errorf("normalBusID(%q) = %q, %v; want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "1b", "1b:00", "0000:1b:00", "0000:1b:00.8", "0000:1b:20.0", "0000:100:00.0", "100000000:1b:00.0",
		"000000000:1b:00.0", "0000:1b:00.0.0", "0:0000:1b:00.0", "g000:1b:00.0", ":1b:00.0", "../../etc:1b:00.0",
	} {
		if got, ok := normalBusID(text); ok {
			t.Errorf("normalBusID(%q) = %q, want none", text, got)
		}
	}
}

func TestPCIPath(t *testing.T) {
	for place, want := range map[string][]string{
		"devices/pci0000:16/0000:16:01.0/0000:17:00.0/net/eth0": {"pci0000:16", "0000:16:01.0", "0000:17:00.0"},
		"devices/pci0000:00/0000:00:03.0/virtio2/net/eth0":      {"pci0000:00", "0000:00:03.0"},
		// Hyper-V, an Arm machine, and a disk behind Intel's VMD.
		"devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0": {"pci0001:00", "0001:00:00.0"},
		"devices/platform/40000000.pcie/pci0004:00/0004:00:00.0/0004:01:00.0":                        {"pci0004:00", "0004:00:00.0", "0004:01:00.0"},
		"devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0": {
			"pci0000:5d", "0000:5d:05.5", "pci10000:00", "10000:00:02.0", "10000:01:00.0"},
		"devices/virtual/net/lo": nil,
		"":                       nil,
	} {
		testcmp.Equal(t, "the path of "+place, pciPath(place), want)
	}
}

// FuzzNormalBusID checks that bus IDs are converted to the form of sysfs.
func FuzzNormalBusID(f *testing.F) {
	for _, seed := range []string{"0000:1b:00.0", "00000000:1B:00.0", "1b:00.0", "ffffffff:ff:1f.7", "::.", "0:0:0.0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, ok := normalBusID(text)
		if !ok {
			return
		}
		if again, ok := normalBusID(id); !ok || again != id || len(id) > len("ffffffff:ff:1f.7") {
			t.Fatalf("%q became %q, then %q, %v", text, id, again, ok)
		}
	})
}
