package registeredmem

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestParseTransports(t *testing.T) {
	for set := CudaIPC; set <= allTransports; set++ {
		if got, err := ParseTransports(set.String()); err != nil || got != set {
			t.Errorf("%v became %v, %v", set, got, err)
		}
	}
	if got := (Ethernet | 1<<7).String(); got != "Ethernet+0x80" {
		t.Errorf("an unknown transport is %q", got)
	}
	if got, err := ParseTransports("cudaipc, ethernet"); err != nil || got != CudaIPC|Ethernet {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "none", ",", "TCP", "Ethernet,roce", "cudaipc+", ",ethernet", "cudaipc,,ethernet", "cudaipc++ethernet"} {
		_, err := ParseTransports(bad)
		testerr.Expect(t, err, mscclgo.ErrInvalid)
	}
}

func TestTransportsFromEnv(t *testing.T) {
	t.Setenv("MSCCLGO_TRANSPORTS", "")
	if got, err := TransportsFromEnv(InfiniBand); err != nil || got != InfiniBand {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("MSCCLGO_TRANSPORTS", "ethernet")
	if got, err := TransportsFromEnv(InfiniBand); err != nil || got != Ethernet {
		t.Errorf("got %v, %v", got, err)
	}
	t.Setenv("MSCCLGO_TRANSPORTS", "TCP")
	_, err := TransportsFromEnv(InfiniBand)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "MSCCLGO_TRANSPORTS", "TCP")
}
