package devicecode_test

import (
	_ "embed"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed packet_test.cu
var packetSource string

// packetMistake is the kernels' Mistake.
type packetMistake struct {
	Count                  uint32
	Dst, Src, Size, Result uint32
	At                     uint32
}

// watch returns what a wait needs, and the status that it looks at.
func watch(t testing.TB, d *gpu.Device, timeout time.Duration) (layout.Watch, *status) {
	t.Helper()
	s := newStatus(t, d)
	return layout.Watch{Status: s.memory.Ptr(), Timeout: uint64(timeout), Peer: 3, Channel: 9}, s
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

// TestLines sends sizes up to 1000 bytes in lines between all alignments.
func TestLines(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "packet_test.cu", packetSource)
	w, _ := watch(t, d, 10*time.Second)
	for _, threads := range []int{64, 96} {
		memory := upload(t, d, make([]byte, 8192))
		mistake := upload(t, d, make([]packetMistake, 1))
		run(t, d, kernel("all128"), gpu.Blocks(1, threads), memory, w, mistake)
		if m := contents[packetMistake](t, mistake, 1)[0]; m.Count != 0 {
			t.Errorf("%d threads: %d bytes are wrong, first %+v", threads, m.Count, m)
		}
	}
}

// TestStaleLines waits for a packet of which a line does not come: all lanes end
// alike, and read what comes later.
func TestStaleLines(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "packet_test.cu", packetSource)
	w, s := watch(t, d, 2*time.Millisecond)
	memory, results := upload(t, d, make([]byte, 1024)), upload(t, d, make([]uint32, 32))
	run(t, d, kernel("stale128"), gpu.Blocks(1, 32), memory, w, results)
	testcmp.Equal(t, "the waits", contents[uint32](t, results, 32), slices.Repeat([]uint32{1 << 8}, 32))
	got := contents[byte](t, memory, 1024)[512:]
	for lane := range 32 {
		if first := got[8*lane]; int(first) != lane {
			t.Errorf("lane %d stored %d first", lane, first)
		}
		if second := 256 + 8*(lane-lane/8); lane%8 != 7 && int(got[second]) != 100+lane {
			t.Errorf("lane %d stored %d second", lane, got[second])
		}
	}
	s.expect(t, w)
}

// TestStalePackets waits for packets whose flag does not come.
func TestStalePackets(t *testing.T) {
	d := testdev.Open(t, 0)
	kernel := kernels(t, d, "packet_test.cu", packetSource)
	w, s := watch(t, d, 2*time.Millisecond)
	memory, results := upload(t, d, make([]byte, 256)), upload(t, d, make([]uint32, 6))
	run(t, d, kernel("stale"), gpu.Blocks(1, 1), memory, w, results)
	testcmp.Equal(t, "the waits", contents[uint32](t, results, 6), []uint32{1, 1, 1, 0, 0, 77})
	testcmp.Equal(t, "what stale packets left", contents[byte](t, memory, 144)[128:], make([]byte, 16))
	s.expect(t, w)
}
