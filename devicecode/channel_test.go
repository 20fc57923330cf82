package devicecode_test

import (
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

//go:embed channel_test.cu
var channelSource string

// end is one rank's end of channels between two ranks of this process, on two
// devices or one.
type end struct {
	device   *gpu.Device
	stream   *gpu.Stream
	kernel   func(string) *gpu.Kernel
	status   *status
	buffer   *gpu.Buffer // of bytes for each channel
	packets  *gpu.Buffer
	words    *gpu.Buffer // inbound, outbound and expected for each channel
	channels []layout.MemoryChannel
	handles  *gpu.Buffer // of the channels, for kernels
	result   *gpu.Buffer // 64 words for kernels to tell
}

// newEnds makes so many channels between two ranks. Everything that kernels need is
// made here, before any waits for another.
func newEnds(t *testing.T, channels int, bytes uint64, timeout time.Duration) [2]*end {
	t.Helper()
	var ends [2]*end
	for i := range ends {
		d := testdev.Open(t, i)
		ends[i] = &end{
			device: d, stream: newStream(t, d), kernel: kernels(t, d, "channel_test.cu", channelSource), status: newStatus(t, d),
			buffer:  upload(t, d, make([]byte, bytes*uint64(channels))),
			packets: upload(t, d, make([]byte, 4*bytes)),
			words:   upload(t, d, make([]uint64, 3*channels)),
			result:  upload(t, d, make([]uint32, 64)),
		}
	}
	for i, e := range ends {
		peer := ends[1-i]
		buffer, packets, words := access(t, e.device, peer.buffer), access(t, e.device, peer.packets), access(t, e.device, peer.words)
		for c := range channels {
			at := gpu.Ptr(24 * c)
			e.channels = append(e.channels, layout.MemoryChannel{
				Semaphore: layout.Device2DeviceSemaphore{
					Inbound: e.words.Ptr() + at, PeerInbound: words.Ptr() + at,
					Outbound: e.words.Ptr() + at + 8, Expected: e.words.Ptr() + at + 16,
					Watch: layout.Watch{Status: e.status.memory.Ptr(), Timeout: uint64(timeout), Peer: uint32(1 - i), Channel: uint32(40 + c)},
				},
				Remote: buffer.Ptr() + gpu.Ptr(bytes)*gpu.Ptr(c), RemoteSize: bytes,
				Local: e.buffer.Ptr() + gpu.Ptr(bytes)*gpu.Ptr(c), LocalSize: bytes,
				Packets: e.packets.Ptr(), PacketsSize: e.packets.Size(),
			})
		}
		e.handles = upload(t, e.device, e.channels)
		// For packets: what this end sends goes to the peer's packet memory.
		ofPackets := e.channels[0]
		ofPackets.Remote, ofPackets.RemoteSize = packets.Ptr(), packets.Size()
		e.channels = append(e.channels, ofPackets)
	}
	return ends
}

func access(t *testing.T, d *gpu.Device, b *gpu.Buffer) *gpu.Buffer {
	t.Helper()
	if !d.CanAccess(b.Device().Info().UUID) {
		t.Skipf("%v cannot access %v", d, b.Device())
	}
	v, err := d.Access(b)
	check(t, err)
	return v
}

// launch launches a kernel of one block on the end's stream.
func (e *end) launch(t testing.TB, name string, threads int, args ...any) {
	t.Helper()
	check(t, e.kernel(name).Launch(e.stream, gpu.Blocks(1, threads), args...))
}

// results waits for the end's kernels and returns their results.
func (e *end) results(t testing.TB, n int) []uint32 {
	t.Helper()
	synchronize(t, e.stream)
	return contents[uint32](t, e.result, n)
}

// expect checks that nothing went wrong.
func (e *end) expect(t testing.TB, what string) {
	t.Helper()
	if n := e.results(t, 1)[0]; n != 0 {
		t.Errorf("%s on %v: %d words were old, %d waits failed", what, e.device, n&(1<<20-1), n>>20)
	}
}

// TestExchange has data put or got before a signal be there after the wait,
// thousands of times in the same memory.
func TestExchange(t *testing.T) {
	const channels, words, rounds, threads = 2, 199, 1000, 64
	ends := newEnds(t, channels, 8*words, 10*time.Second)
	for i, e := range ends {
		k := e.kernel("exchange")
		check(t, k.Launch(e.stream, gpu.LaunchConfig{Grid: gpu.Dim3{X: channels}, Block: gpu.Dim3{X: threads}, Cooperative: true}, e.handles, i, words, rounds, e.result))
	}
	for _, e := range ends {
		e.expect(t, "exchange")
	}
}

// TestPacketsBetweenRanks exchanges packets, in which the flag travels with the data.
func TestPacketsBetweenRanks(t *testing.T) {
	const rounds, threads = 1000, 64
	for _, size := range []int{8, 16} {
		for _, words := range []int{1, 101} {
			ends := newEnds(t, 1, uint64(8*words), 10*time.Second)
			for i, e := range ends {
				e.launch(t, fmt.Sprintf("packets%d", size), threads, e.channels[1], i, words, rounds, e.result)
			}
			for _, e := range ends {
				e.expect(t, fmt.Sprintf("LL%d packets of %d words", size, words))
			}
		}
	}
}

func TestElements(t *testing.T) {
	ends := newEnds(t, 1, 1000, time.Second)
	ends[0].launch(t, "elements", 32, ends[0].channels[0], 500, ends[0].result)
	ends[0].expect(t, "elements")
	for i, v := range contents[uint16](t, ends[1].buffer, 500) {
		if v != uint16(3*i) {
			t.Fatalf("the peer's element %d is %d", i, v)
		}
	}
}

// TestRelay passes a token there and back without ordering other memory.
func TestRelay(t *testing.T) {
	ends := newEnds(t, 1, 8, 10*time.Second)
	for i, e := range ends {
		e.launch(t, "relay", 1, e.channels[0].Semaphore, 1-i, 2000, e.result)
	}
	for _, e := range ends {
		e.expect(t, "relay")
	}
}

// TestSignalsAreCounted sends signals ahead of the waits, and polls.
func TestSignalsAreCounted(t *testing.T) {
	ends := newEnds(t, 1, 8, 2*time.Millisecond)
	from, to := ends[0], ends[1]
	polled := func() uint32 {
		t.Helper()
		to.launch(t, "polls", 1, to.channels[0], 50, to.result)
		return to.results(t, 1)[0]
	}
	if n := polled(); n != 0 {
		t.Errorf("%d signals before any was sent", n)
	}
	from.launch(t, "signals", 1, from.channels[0], 7)
	synchronize(t, from.stream)
	to.launch(t, "waits", 1, to.channels[0], 4, to.result)
	testcmp.Equal(t, "waits for signals that have arrived", to.results(t, 4), []uint32{0, 0, 0, 0})
	if n := polled(); n != 3 {
		t.Errorf("7 signals, 4 waits and %d polls", n)
	}
	if n := polled(); n != 0 {
		t.Errorf("%d signals too many", n)
	}
	if _, _, failed := to.status.failed(); failed {
		t.Error("a wait reported that it timed out")
	}
}

// TestWaitTimesOut waits without signals. Late signals are still received.
func TestWaitTimesOut(t *testing.T) {
	const timeout = 5 * time.Millisecond
	ends := newEnds(t, 1, 8, timeout)
	from, to := ends[0], ends[1]
	begin := time.Now()
	to.launch(t, "waits", 1, to.channels[0], 2, to.result)
	testcmp.Equal(t, "waits without signals", to.results(t, 2), []uint32{uint32(devicecode.WaitTimedOut), uint32(devicecode.WaitTimedOut)})
	if took := time.Since(begin); took < 2*timeout {
		t.Errorf("two waits of %v took %v", timeout, took)
	}
	to.status.expect(t, to.channels[0].Semaphore.Watch)
	if got := contents[uint64](t, to.words, 3); got[2] != 0 {
		t.Errorf("%d signals were consumed that did not come", got[2])
	}

	from.launch(t, "signals", 1, from.channels[0], 2)
	synchronize(t, from.stream)
	to.launch(t, "waits", 1, to.channels[0], 3, to.result)
	testcmp.Equal(t, "three waits for two late signals", to.results(t, 3), []uint32{0, 0, 1})
}

// TestWaitIsAborted aborts a wait long before its timeout.
func TestWaitIsAborted(t *testing.T) {
	ends := newEnds(t, 1, 8, 25*time.Second)
	to := ends[1]
	begin := time.Now()
	to.launch(t, "waits", 1, to.channels[0], 3, to.result)
	time.Sleep(5 * time.Millisecond)
	if done, err := to.stream.Query(); done || err != nil {
		t.Errorf("the kernel did not wait: %v, %v", done, err)
	}
	to.status.abort()
	testcmp.Equal(t, "aborted waits", to.results(t, 3), []uint32{2, 2, 2})
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the aborted waits took %v", took)
	}
	if _, _, failed := to.status.failed(); failed {
		t.Error("an aborted wait reported that it timed out")
	}
	if got := contents[uint64](t, to.words, 3); got[2] != 0 {
		t.Errorf("%d signals were consumed that did not come", got[2])
	}
}
