package devicecode_test

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/testdev"
)

//go:embed packet_test.cu
var packetSource string

// packetMistake is the kernels' Mistake.
type packetMistake struct {
	Count                  uint32
	Dst, Src, Size, Result uint32
	At                     uint32
}

// watch gives what a wait needs, and the status that it looks at.
func watch(t testing.TB, d *gpu.Device, timeout time.Duration) (devicecode.Watch, *status) {
	t.Helper()
	s := newStatus(t, d)
	return devicecode.Watch{Status: s.memory.Ptr(), Timeout: uint64(timeout), Peer: 3, Channel: 9}, s
}

// TestPackets sends every size up to 100 bytes between all alignments from 0 to 8.
func TestPackets(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "packet_test.cu", packetSource)
	w, _ := watch(t, d, 10*time.Second)
	for _, size := range []int{8, 16} {
		memory := upload(t, d, make([]byte, 4096))
		mistake := upload(t, d, make([]packetMistake, 1))
		run(t, d, kernel(fmt.Sprintf("all%d", size)), gpu.Blocks(1, 64), memory, w, mistake)
		if m := contents[packetMistake](t, mistake, 1)[0]; m.Count != 0 {
			t.Errorf("LL%d: %d bytes are wrong, first %+v", size, m.Count, m)
		}
	}
}

// TestStalePackets waits for packets whose flag does not come.
func TestStalePackets(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "packet_test.cu", packetSource)
	w, s := watch(t, d, 2*time.Millisecond)
	memory, results := upload(t, d, make([]byte, 256)), upload(t, d, make([]uint32, 6))
	run(t, d, kernel("stale"), gpu.Blocks(1, 1), memory, w, results)
	if got := contents[uint32](t, results, 6); !slices.Equal(got, []uint32{1, 1, 1, 0, 0, 77}) {
		t.Errorf("the waits gave %v", got)
	}
	if got := contents[byte](t, memory, 144)[128:]; !bytes.Equal(got, make([]byte, 16)) {
		t.Errorf("stale packets gave data: %v", got)
	}
	s.expect(t, w)
}
