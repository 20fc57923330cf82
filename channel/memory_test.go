package channel_test

import (
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// memoryEnd is what one of two ranks of this process makes a channel of.
type memoryEnd struct {
	local, remote *registeredmem.Memory
	inbox         *gpu.Buffer
	semaphore     *semaphore.Device2Device
}

func newMemoryEnds(t *testing.T) [2]*memoryEnd {
	t.Helper()
	var ends [2]*memoryEnd
	var registries [2]*registeredmem.Registry
	var words [2]*gpu.Buffer
	must := func(err error) {
		t.Helper()
		testerr.Check(t, err)
	}
	for i := range ends {
		device := testdev.Open(t, i)
		var err error
		registries[i], err = registeredmem.NewRegistry(registeredmem.Options{Rank: i, Group: [16]byte{1}, Secret: [32]byte{2}, Device: device})
		must(err)
		t.Cleanup(func() { registries[i].Close() })
		data, err := device.Alloc(uint64(1000 + i))
		must(err)
		ends[i] = &memoryEnd{}
		ends[i].inbox, err = device.Alloc(uint64(2000 + i))
		must(err)
		words[i], err = device.Alloc(semaphore.Device2DeviceBytes)
		must(err)
		ends[i].local, err = registries[i].Register(data)
		must(err)
	}
	for i, end := range ends {
		description, err := ends[1-i].local.MarshalBinary()
		must(err)
		end.remote, err = registries[i].Import(t.Context(), description)
		must(err)
		theirs, err := registries[i].Device().Access(words[1-i])
		must(err)
		status, err := registries[i].Device().AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{})))
		must(err)
		t.Cleanup(func() { status.Close() })
		end.semaphore, err = semaphore.NewDevice2Device(words[i], theirs, devicecode.Watch{Status: status.Ptr(), Timeout: 1e9, Peer: uint32(1 - i), Channel: 3})
		must(err)
	}
	return ends
}

func TestMemoryChannelHandle(t *testing.T) {
	for i, end := range newMemoryEnds(t) {
		for _, inbox := range []*gpu.Buffer{nil, end.inbox} {
			c := testerr.Must(channel.NewMemoryChannel(end.semaphore, end.remote, end.local, inbox))(t)
			want := layout.MemoryChannel{
				Semaphore: end.semaphore.Handle().Internal(),
				Remote:    end.remote.Buffer().Ptr(), RemoteSize: uint64(1000 + 1 - i),
				Local: end.local.Buffer().Ptr(), LocalSize: uint64(1000 + i),
			}
			if inbox != nil {
				want.Packets, want.PacketsSize = inbox.Ptr(), uint64(2000+i)
			}
			testcmp.Equal(t, fmt.Sprintf("the handle of rank %d", i), c.Handle().Internal(), want)
		}
	}
}

func TestWrongMemoryEnds(t *testing.T) {
	ends := newMemoryEnds(t)
	check := func(name string, remote, local *registeredmem.Memory, part string) {
		t.Helper()
		_, err := channel.NewMemoryChannel(ends[0].semaphore, remote, local, nil)
		if !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v; want %q", name, err, part)
		}
	}
	check("no remote", nil, ends[0].local, "is nil")
	check("no local", ends[0].remote, nil, "is nil")
	if _, err := channel.NewMemoryChannel(nil, ends[0].remote, ends[0].local, nil); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no semaphore: %v", err)
	}
	if _, err := channel.NewPortChannel(nil, nil, nil, 0, 0); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("a port channel of nothing: %v", err)
	}
	packets := testerr.Must(ends[0].inbox.Device().Alloc(8))(t)
	packets.Close()
	if _, err := channel.NewMemoryChannel(ends[0].semaphore, ends[0].remote, ends[0].local, packets); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "packets") {
		t.Errorf("closed packets: %v", err)
	}
	check("two of the peer's", ends[0].remote, ends[0].remote, "of rank 1")
	remote, local := ends[0].remote, ends[0].local
	testerr.Check(t, remote.Close())
	check("closed remote", remote, local, "of rank 1")
	ends = newMemoryEnds(t)
	testerr.Check(t, ends[0].local.Close())
	check("closed local", ends[0].remote, ends[0].local, "of rank 0")
}

// A channel of a rank to itself, as communicators make one to every rank. The
// handle goes to kernels by value or in device memory.
func ExampleNewMemoryChannel() {
	device, err := gpu.Open("emu:0")
	if err != nil {
		log.Fatal(err)
	}
	defer device.Close()
	registry, err := registeredmem.NewRegistry(registeredmem.Options{Device: device})
	if err != nil {
		log.Fatal(err)
	}
	defer registry.Close()
	data, err := device.Alloc(1000)
	if err != nil {
		log.Fatal(err)
	}
	memory, err := registry.Register(data)
	if err != nil {
		log.Fatal(err)
	}
	words, err := device.Alloc(semaphore.Device2DeviceBytes)
	if err != nil {
		log.Fatal(err)
	}
	status, err := device.AllocHost(uint64(unsafe.Sizeof(layout.GroupStatus{}))) // of the group, where a wait that times out reports
	if err != nil {
		log.Fatal(err)
	}
	end, err := semaphore.NewDevice2Device(words, words, devicecode.Watch{Status: status.Ptr(), Timeout: uint64(10 * time.Second)})
	if err != nil {
		log.Fatal(err)
	}
	c, err := channel.NewMemoryChannel(end, memory, memory, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the peer's buffer:", c.Handle().Internal().RemoteSize, "bytes")
	// Output: the peer's buffer: 1000 bytes
}
