package devicecode_test

import (
	_ "embed"
	"os"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed lines_test.cu
var linesSource string

// torn is the kernels' Torn.
type torn struct {
	Count, Old              uint64
	Got, Want               uint64
	Round, Lane, Word, Warp uint32
}

// TestTornLines sends LL128 packets between two devices, both ways at a time, to readers and by
// writers whose lanes come at times of their own, and looks for lines of which a part is older
// than the flag. It takes as long as MSCCLGO_TEST_LITMUS says, such as 1m.
func TestTornLines(t *testing.T) {
	least := time.Duration(0)
	if text := os.Getenv("MSCCLGO_TEST_LITMUS"); text != "" {
		var err error
		least, err = time.ParseDuration(text)
		check(t, err)
	}
	t.Run("library", func(t *testing.T) {
		rounds, found := tornLines(t, "library", least)
		t.Logf("%d rounds", rounds)
		if found.Count != 0 {
			t.Errorf("%d words were torn in %d rounds, %d of them old, the first %+v", found.Count, rounds, found.Old, found)
		}
	})
	// What the library's __syncwarp is for. Whether the lanes are apart is up to the device.
	t.Run("parted", func(t *testing.T) {
		rounds, found := tornLines(t, "parted", least/4)
		t.Logf("%d words were torn in %d rounds, %d of them old, the first %+v", found.Count, rounds, found.Old, found)
	})
	// That torn lines are found.
	t.Run("oneByOne", func(t *testing.T) {
		if rounds, found := tornLines(t, "oneByOne", 0); found.Old < uint64(rounds) {
			t.Errorf("lanes that loaded before the packet was sent saw it: %d rounds, %+v", rounds, found)
		}
	})
}

// tornLines runs a reader for at least that long, and returns the rounds of each warp and what
// all found.
func tornLines(t *testing.T, reader string, least time.Duration) (rounds uint32, found torn) {
	const slots, packet = 4, 512
	blocks, threads, each := 16, 128, uint32(5000)
	if !testdev.CUDA() {
		blocks, threads, each = 2, 64, 30
	}
	warps := blocks * threads / 32
	// A way is the packets from one device to the other.
	type way struct {
		from, to       *gpu.Device
		send, receive  *gpu.Kernel
		packets, freed *gpu.Buffer // on the receiver's and the sender's device
		there, back    *gpu.Buffer // the same as the other device sees them
		failed         [2]*gpu.Buffer
		torn           *gpu.Buffer
		streams        [2]*gpu.Stream
	}
	devices := [2]*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}
	var ways [2]way
	for i := range ways {
		w := &ways[i]
		w.from, w.to = devices[i], devices[1-i]
		w.send, w.receive = kernels(t, w.from, "lines_test.cu", linesSource)("send"), kernels(t, w.to, "lines_test.cu", linesSource)(reader)
		w.packets, w.freed = upload(t, w.to, make([]byte, warps*slots*packet)), upload(t, w.from, make([]uint64, warps*16))
		var err error
		w.there, err = w.from.Access(w.packets)
		check(t, err)
		w.back, err = w.to.Access(w.freed)
		check(t, err)
		w.failed = [2]*gpu.Buffer{upload(t, w.from, make([]uint32, 1)), upload(t, w.to, make([]uint32, 1))}
		w.torn = upload(t, w.to, make([]torn, 1))
		w.streams = [2]*gpu.Stream{newStream(t, w.from), newStream(t, w.to)}
	}
	sends, _ := watch(t, devices[0], 20*time.Second)
	receives, _ := watch(t, devices[1], 20*time.Second)
	watches := [2]any{sends, receives}
	for start := time.Now(); rounds == 0 || time.Since(start) < least; rounds += each {
		for i, w := range ways {
			grid := gpu.Blocks(blocks, threads)
			check(t, w.receive.Launch(w.streams[1], grid, w.packets, w.back, rounds+1, each, watches[1-i], w.torn, w.failed[1]))
			check(t, w.send.Launch(w.streams[0], grid, w.there, w.freed, rounds+1, each, watches[i], w.failed[0]))
		}
		for _, w := range ways {
			synchronize(t, w.streams[:]...)
			for _, failed := range w.failed {
				if result := contents[uint32](t, failed, 1)[0]; result != 0 {
					t.Fatalf("a wait ended with %d", result)
				}
			}
		}
	}
	for _, w := range ways {
		f := contents[torn](t, w.torn, 1)[0]
		if found.Count == 0 {
			found.Got, found.Want, found.Round, found.Lane, found.Word, found.Warp = f.Got, f.Want, f.Round, f.Lane, f.Word, f.Warp
		}
		found.Count += f.Count
		found.Old += f.Old
	}
	return rounds, found
}
