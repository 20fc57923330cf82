package devicecode_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// handles are the structs that Go and the headers both declare. A field of Go,
// such as PeerInbound, is peerInbound there.
var handles = []struct {
	mirror any // the zero value
	header string
	name   string
}{
	{layout.GroupStatus{}, "wait.cuh", "GroupStatus"},
	{layout.WaitNote{}, "wait.cuh", "WaitNote"},
	{layout.Watch{}, "wait.cuh", "Watch"},
	{layout.TraceRing{}, "trace.cuh", "TraceRing"},
	{traceEvent{}, "trace.cuh", "TraceEvent"},
	{layout.Device2DeviceSemaphore{}, "semaphore.cuh", "Device2DeviceSemaphoreHandle"},
	{layout.MemoryChannel{}, "memory_channel.cuh", "MemoryChannelHandle"},
	{layout.ChannelSet{}, "memory_channel.cuh", "MemoryChannelSet"},
	{layout.ChannelSet{}, "port_channel.cuh", "PortChannelSet"},
	{layout.Group{}, "group.cuh", "GroupHandle"},
	{layout.PeerMemory{}, "group.cuh", "PeerMemory"},
	{layout.Fifo{}, "fifo.cuh", "FifoHandle"},
	{layout.FifoState{}, "fifo.cuh", "FifoState"},
	{layout.Host2DeviceSemaphore{}, "host_semaphore.cuh", "Host2DeviceSemaphoreHandle"},
	{layout.PortState{}, "port_channel.cuh", "PortState"},
	{layout.PortProgress{}, "port_channel.cuh", "PortProgress"},
	{layout.PortQueue{}, "port_channel.cuh", "PortQueue"},
	{layout.BasePortChannel{}, "port_channel.cuh", "BasePortChannelHandle"},
	{layout.PortChannel{}, "port_channel.cuh", "PortChannelHandle"},
	{layout.PipeControl{}, "pipe.cuh", "PipeControl"},
	{layout.Pipe{}, "pipe.cuh", "PipeHandle"},
	{layout.PipeSet{}, "pipe.cuh", "PipeSet"},
	{layout.PipePool{}, "pipe_pool.cuh", "PipePool"},
}

// traceEvent is a native.Event by the names of the header.
type traceEvent native.Event

// constants are the numbers that Go and the headers both declare.
var constants = []struct {
	mirror uint64
	header string
	name   string
}{
	{devicecode.MaxRanks, "config.cuh", "kMaxRanks"},
	{layout.RanksByValue, "config.cuh", "kRanksByValue"},
	{devicecode.MaxBlocks, "config.cuh", "kMaxBlocks"},
	{layout.WaitNotes, "wait.cuh", "kWaitNotes"},
	{layout.PortWaiting, "port_channel.cuh", "kPortWaiting"},
	{layout.RoomChannel, "port_channel.cuh", "kRoomChannel"},
	{uint64(devicecode.WaitDone), "wait.cuh", "WaitResult::Done"},
	{uint64(devicecode.WaitTimedOut), "wait.cuh", "WaitResult::TimedOut"},
	{uint64(devicecode.WaitAborted), "wait.cuh", "WaitResult::Aborted"},
	{uint64(native.EventSignal), "trace.cuh", "TraceKind::Signal"},
	{uint64(native.EventPush), "trace.cuh", "TraceKind::Push"},
	{uint64(native.EventPackets), "trace.cuh", "TraceKind::Packets"},
	{layout.PortPut, "port_channel.cuh", "kPut"},
	{layout.PortSignal, "port_channel.cuh", "kSignal"},
	{layout.PortFlush, "port_channel.cuh", "kFlush"},
	{layout.PortInline, "port_channel.cuh", "kInline"},
	{layout.PortGet, "port_channel.cuh", "kGet"},
	{layout.PortStore, "port_channel.cuh", "kStore"},
	{layout.PortAdd, "port_channel.cuh", "kAdd"},
	{layout.PortExchange, "port_channel.cuh", "kExchange"},
	{layout.PipeSends, "pipe.cuh", "kPipeSends"},
	{layout.PipeByPort, "pipe.cuh", "kPipeByPort"},
	{layout.PipePosts, "pipe.cuh", "kPipePosts"},
	{layout.PipeBorrows, "pipe.cuh", "kPipeBorrows"},
	{layout.PipeUnopened, "pipe.cuh", "kPipeUnopened"},
	{layout.MaxPipeLot, "pipe.cuh", "kMaxPipeLot"},
	{layout.PipeLot, "pipe.cuh", "kPipeLot"},
}

// offset returns the expression for a field's offset, at some address, as NVRTC has
// no offsetof.
func offset(structure, field string) string {
	return fmt.Sprintf("reinterpret_cast<uintptr_t>(&reinterpret_cast<%s*>(out)->%s) - reinterpret_cast<uintptr_t>(out)", structure, field)
}

// TestHandles has a kernel tell the size of each struct, and the offset and size
// of each of its fields, and compares them with what Go has.
func TestHandles(t *testing.T) {
	type fact struct {
		what, expression string
		want             uint64
	}
	var facts []fact
	headers := map[string]bool{}
	for _, h := range handles {
		headers[h.header] = true
		name := "mscclgo::" + h.name
		mirror := reflect.TypeOf(h.mirror)
		facts = append(facts,
			fact{"the size of " + h.name, fmt.Sprintf("sizeof(%s)", name), uint64(mirror.Size())},
			fact{"the alignment of " + h.name, fmt.Sprintf("alignof(%s)", name), uint64(mirror.Align())})
		for i := range mirror.NumField() {
			f := mirror.Field(i)
			field := string(unicode.ToLower(rune(f.Name[0]))) + f.Name[1:]
			facts = append(facts,
				fact{fmt.Sprintf("the offset of %s.%s", h.name, field), offset(name, field), uint64(f.Offset)},
				fact{fmt.Sprintf("the size of %s.%s", h.name, field), fmt.Sprintf("sizeof(%s::%s)", name, field), uint64(f.Type.Size())})
		}
	}
	for _, c := range constants {
		headers[c.header] = true
		facts = append(facts, fact{c.name, "mscclgo::" + c.name, c.mirror})
	}

	var source strings.Builder
	for _, header := range slices.Sorted(maps.Keys(headers)) {
		fmt.Fprintf(&source, "#include <mscclgo/%s>\n", header)
	}
	source.WriteString("extern \"C\" __global__ void layout(uint64_t* out) {\n")
	for i, f := range facts {
		fmt.Fprintf(&source, "  out[%d] = uint64_t(%s);\n", i, f.expression)
	}
	source.WriteString("}\n")

	d := testdev.Open(t, 0)
	out := upload(t, d, make([]uint64, len(facts)))
	run(t, d, kernels(t, d, "layout.cu", source.String())("layout"), gpu.Blocks(1, 1), out)
	for i, got := range contents[uint64](t, out, len(facts)) {
		if got != facts[i].want {
			t.Errorf("%s is %d in the headers, %d in Go", facts[i].what, got, facts[i].want)
		}
	}
}

func TestParseFailedWait(t *testing.T) {
	for _, c := range []struct {
		word          uint64
		channel, peer int
		ok            bool
	}{
		{0, 0, 0, false},
		{1 << 63, 0, 0, true},
		{1<<63 | 5<<32 | 7, 5, 7, true},
		{1<<64 - 1, 1<<31 - 1, 1<<32 - 1, true},
	} {
		if channel, peer, ok := layout.ParseFailedWait(c.word); channel != c.channel || peer != c.peer || ok != c.ok {
			t.Errorf("%#x is channel %d, peer %d, %v", c.word, channel, peer, ok)
		}
	}
}

func TestWaitResultString(t *testing.T) {
	var got []string
	for r := range devicecode.WaitResult(4) {
		got = append(got, r.String())
	}
	testcmp.Equal(t, "names", got, []string{"done", "timed out", "aborted", "result 3"})
}
