package semaphore_test

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/semaphore"
)

//go:embed device2device_test.cu
var kernels []byte

// player is one end of a semaphore, with what it takes to run kernels on it.
type player struct {
	dev     *gpu.Device
	memory  *gpu.Buffer // an end's words, then what the peer's kernel writes
	peer    *gpu.Buffer // the other's memory
	status  *gpu.Buffer // a GroupStatus
	results *gpu.Buffer
	module  *gpu.Module
	stream  *gpu.Stream
	end     *semaphore.Device2Device
}

const dataOffset = 1024

// newPlayers makes both ends. timeouts bound their waits.
func newPlayers(t testing.TB, timeouts [2]time.Duration) [2]*player {
	t.Helper()
	var p [2]*player
	must := func(err error) {
		t.Helper()
		testerr.Check(t, err)
	}
	for i := range p {
		p[i] = &player{dev: testdev.Open(t, i)}
		var err error
		p[i].memory, err = gpu.Upload(p[i].dev, slices.Repeat([]byte{0x5a}, 2048))
		must(err)
		p[i].status, err = p[i].dev.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{})))
		must(err)
		p[i].results, err = gpu.Upload(p[i].dev, slices.Repeat([]uint32{99}, 3))
		must(err)
		p[i].module, err = devicecode.Load(t.Context(), p[i].dev, "device2device_test.cu", kernels, devicecode.Options{})
		must(err)
		p[i].stream, err = p[i].dev.NewStream()
		must(err)
		t.Cleanup(func() { p[i].stream.Close() })
	}
	for i := range p {
		var err error
		p[i].peer, err = p[i].dev.Access(p[1-i].memory)
		must(err)
		mine, err := p[i].memory.Slice(0, semaphore.Device2DeviceBytes)
		must(err)
		theirs, err := p[i].peer.Slice(0, semaphore.Device2DeviceBytes)
		must(err)
		p[i].end, err = semaphore.NewDevice2Device(mine, theirs, devicecode.Watch{
			Status: p[i].status.Ptr(), Timeout: uint64(timeouts[i]), Peer: uint32(1 - i), Channel: 7,
		})
		must(err)
	}
	return p
}

// launch queues a kernel of one thread.
func (p *player) launch(t testing.TB, name string, args ...any) {
	t.Helper()
	k, err := p.module.Kernel(name)
	if err == nil {
		err = k.Launch(p.stream, gpu.Blocks(1, 1), append(append([]any{p.end.Handle()}, args...), p.results)...)
	}
	testerr.Check(t, err)
}

// want waits for the kernel and checks its results.
func (p *player) want(t testing.TB, results ...uint32) {
	t.Helper()
	testerr.Check(t, p.stream.Synchronize(t.Context()))
	got := make([]uint32, len(results))
	testerr.Check(t, gpu.CopyOut(got, p.results))
	testcmp.Equal(t, fmt.Sprintf("the results of %v", p.dev), got, results)
}

// TestDevice2Device plays a volley, whose data must be there when its signal is,
// and then counts signals that nobody awaited meanwhile.
func TestDevice2Device(t *testing.T) {
	const rounds, signals = 500, 100
	p := newPlayers(t, [2]time.Duration{patience, patience})
	for i := range p {
		theirs, mine := p[i].peer.Ptr()+dataOffset, p[i].memory.Ptr()+dataOffset
		p[i].launch(t, "volley", 1-i, rounds, theirs, mine)
	}
	p[0].want(t, 0, 0)
	p[1].want(t, 0, 0)
	for i := range p {
		p[i].launch(t, "count", signals)
	}
	p[0].want(t, 0, 1, 0)
	p[1].want(t, 0, 1, 0)
}

// TestDevice2DeviceCounts has the counts pass the ends of 32 bits, of the 48 that notes of
// waits keep, and of a signed count.
func TestDevice2DeviceCounts(t *testing.T) {
	const rounds, signals = 60, 60
	for _, start := range []uint64{1<<32 - 50, 1<<48 - 50, 1<<63 - 50} {
		t.Run(fmt.Sprint(start), func(t *testing.T) {
			p := newPlayers(t, [2]time.Duration{patience, patience})
			for i := range p {
				h := p[i].end.Handle().Internal()
				for _, word := range []gpu.Ptr{h.Inbound, h.Outbound, h.Expected} {
					at, err := p[i].memory.Slice(uint64(word-p[i].memory.Ptr()), 8)
					if err == nil {
						err = gpu.CopyIn(at, []uint64{start})
					}
					testerr.Check(t, err)
				}
			}
			for i := range p {
				p[i].launch(t, "volley", 1-i, rounds, p[i].peer.Ptr()+dataOffset, p[i].memory.Ptr()+dataOffset)
			}
			p[0].want(t, 0, 0)
			p[1].want(t, 0, 0)
			for i := range p {
				p[i].launch(t, "count", signals)
			}
			p[0].want(t, 0, 1, 0)
			p[1].want(t, 0, 1, 0)
		})
	}
}

// TestDevice2DeviceWaitEnds has one end wait for a signal that does not come.
func TestDevice2DeviceWaitEnds(t *testing.T) {
	p := newPlayers(t, [2]time.Duration{50 * time.Millisecond, time.Hour})
	for i := range p {
		p[i].launch(t, "volley", 0, 1, p[i].peer.Ptr()+dataOffset, p[i].memory.Ptr()+dataOffset)
	}
	testerr.Check(t, p[0].stream.Synchronize(t.Context()))
	var status [1]layout.GroupStatus
	testerr.Check(t, gpu.CopyOut(status[:], p[0].status))
	if channel, peer, failed := layout.ParseFailedWait(status[0].FirstFailed); channel != 7 || peer != 1 || !failed {
		t.Errorf("reported channel %d and peer %d, %v; want 7 and 1", channel, peer, failed)
	}
	p[0].want(t, 1, 0)
	// The kernel signalled in spite of it, which ends the other's wait.
	p[1].want(t, 0, 0)
}

func TestWrongDeviceEnds(t *testing.T) {
	d, other := testdev.Open(t, 0), testdev.Open(t, 0)
	memory := func(d *gpu.Device, offset, n uint64) *gpu.Buffer {
		b := testerr.Must(gpu.Upload(d, make([]byte, 1024)))(t)
		b = testerr.Must(b.Slice(offset, n))(t)
		return b
	}
	good := memory(d, 64, semaphore.Device2DeviceBytes)
	watch := newWatch(t, d)
	for name, ends := range map[string][2]*gpu.Buffer{
		"own too small":  {memory(d, 0, 63), good},
		"own too large":  {memory(d, 0, 65), good},
		"own off":        {memory(d, 8, 64), good},
		"peer's too big": {good, memory(d, 0, 128)},
		"peer's off":     {good, memory(d, 32, 64)},
		"not mapped":     {good, memory(other, 0, 64)},
	} {
		if _, err := semaphore.NewDevice2Device(ends[0], ends[1], watch); !errors.Is(err, mscclgo.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	closed, err := d.Alloc(64)
	if err == nil {
		err = closed.Close()
	}
	testerr.Check(t, err)
	if _, err := semaphore.NewDevice2Device(closed, good, watch); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("closed memory: %v", err)
	}
}

// newWatch returns a watch that ends waits of a device.
func newWatch(t testing.TB, d *gpu.Device) devicecode.Watch {
	t.Helper()
	status := testerr.Must(d.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))))(t)
	t.Cleanup(func() { status.Close() })
	return devicecode.Watch{Status: status.Ptr(), Timeout: uint64(patience)}
}

// TestWrongWatch tries watches with which waits of kernels would fault, or end at once.
func TestWrongWatch(t *testing.T) {
	s := newSides(t)[0]
	d := s.reg.Device()
	words := testerr.Must(d.Alloc(semaphore.Device2DeviceBytes))(t)
	good := newWatch(t, d)
	for _, c := range []struct {
		name  string
		watch devicecode.Watch
		text  string // in the error, or "" for none
	}{
		{"zero", devicecode.Watch{}, "Watch.Status is 0"},
		{"no status", devicecode.Watch{Timeout: good.Timeout}, "Watch.Status is 0"},
		{"not aligned", devicecode.Watch{Status: good.Status + 8, Timeout: good.Timeout}, "no multiple of 16"},
		{"no time-out", devicecode.Watch{Status: good.Status}, "Watch.Timeout is 0"},
		{"negative", devicecode.Watch{Status: good.Status, Timeout: 1<<64 - 1}, "a negative time"},
		{"too long", devicecode.Watch{Status: good.Status, Timeout: 1 << 63}, "a negative time"},
		{"longest", devicecode.Watch{Status: good.Status, Timeout: 1<<63 - 1}, ""},
	} {
		for kind, err := range map[string]error{
			"Device2Device": second(semaphore.NewDevice2Device(words, words, c.watch)),
			"Host2Device":   second(semaphore.NewHost2Device(s.conn, words, s.peer, 0, c.watch)),
		} {
			switch {
			case c.text == "" && err != nil:
				t.Errorf("%s, %s: %v", c.name, kind, err)
			case c.text != "" && (!errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), c.text)):
				t.Errorf("%s, %s: %v; want %q", c.name, kind, err, c.text)
			}
		}
	}
}
