package communicator

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/timeline"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// The number of events that a rank keeps; see [Options].TraceEvents.
const (
	defaultTraceEvents = 1 << 16
	minTraceEvents     = 16
	maxTraceEvents     = 1 << 24
)

// envTraceEvents is the variable for [Options].TraceEvents.
const envTraceEvents = "MSCCLGO_TRACE_EVENTS"

// traceFromEnv sets what MSCCLGO_TRACE and MSCCLGO_TRACE_EVENTS say.
func traceFromEnv(o *Options) error {
	if file := os.Getenv(devicecode.EnvTrace); file != "" {
		o.Trace = file
	}
	text := os.Getenv(envTraceEvents)
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < minTraceEvents || n > maxTraceEvents {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: join", "%s is %q, not a number of events from %d to %d", envTraceEvents, text, minTraceEvents, maxTraceEvents)
	}
	o.TraceEvents = n
	return nil
}

// checkTrace completes the options of a timeline.
func (o *Options) checkTrace() error {
	switch {
	case o.Trace == "":
		return nil
	case o.TraceEvents == 0:
		o.TraceEvents = defaultTraceEvents
	case o.TraceEvents < minTraceEvents || o.TraceEvents > maxTraceEvents:
		return fmt.Errorf("TraceEvents is %d, not from %d to %d", o.TraceEvents, minTraceEvents, maxTraceEvents)
	}
	o.TraceEvents = 1 << bits.Len(uint(o.TraceEvents-1))
	var err error
	o.Trace, err = filepath.Abs(o.Trace) // the working directory may change
	return err
}

// tracer records what this rank does, for the timeline of the group.
type tracer struct {
	c    *Communicator
	host *native.Trace // of proxies and transports
	same []bool        // the ranks whose hosts' clock is rank 0's

	mu       sync.Mutex
	devices  timeline.Clock
	hosts    timeline.Clock
	local    []int // the ranks of the host group
	channels map[uint32]timeline.Channel
	ended    bool          // the ring is not to be read any more
	dumped   chan struct{} // closed once a failure is written; nil before one
}

// traceRing is memory in which kernels write events: a native.TraceHeader and the events,
// and the count in device memory. Graphs that stamp their launches know the address.
type traceRing struct {
	memory *gpu.Buffer
	count  *gpu.Buffer
	sites  func() []native.LaunchSite
	stop   func()
}

// newTracer returns the tracer of a communicator whose failure and registry are made, and
// has kernels, launches and connections write to it. It checks that rank 0 can write the file.
func newTracer(c *Communicator) (*tracer, error) {
	t := &tracer{c: c, host: native.NewTrace(c.options.TraceEvents), channels: map[uint32]timeline.Channel{}}
	if c.Rank() == 0 {
		file, err := os.Create(c.options.Trace)
		if err == nil {
			err = errors.Join(noFile(file), file.Close())
		}
		if err != nil {
			return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "communicator: trace", "the timeline cannot be written: %w", err).At(0, mscclgo.NoRank)
		}
	}
	if err := c.startRing(); err != nil {
		return nil, err
	}
	now, err := c.dev.Internal().Clock()
	if err != nil {
		return nil, err
	}
	t.devices.First = timeline.Sample{Local: now.Device, Common: now.Host, Error: now.Error}
	c.registry.Internal().TraceTo(t.host)
	c.failure.tracer.Store(t)
	return t, nil
}

// noFile removes a file that was made to see whether it can be. So a rank that is interrupted or killed leaves
// no empty file.
func noFile(file *os.File) error {
	info, err := os.Lstat(file.Name())
	if err == nil && info.Mode().IsRegular() {
		os.Remove(file.Name()) // where the folder does not let it, an empty one stays
	}
	return err
}

// startRing empties the ring, which it makes if there is none, and tells kernels of it.
func (c *Communicator) startRing() error {
	size := uint64(c.options.TraceEvents)
	r := c.ring
	if r == nil {
		memory, err := c.dev.AllocHost(native.TraceHead + size*native.EventBytes)
		if err != nil {
			return err
		}
		count, err := c.dev.Alloc(uint64(unsafe.Sizeof(uint64(0))))
		if err != nil {
			return errors.Join(err, memory.Close())
		}
		r = &traceRing{memory: memory, count: count}
		c.ring = r
	}
	if err := zero(r.count); err != nil {
		return err
	}
	clear(r.memory.Bytes())
	header := native.TraceHeader{Events: uint64(r.memory.Ptr()) + native.TraceHead, Count: uint64(r.count.Ptr()), Size: size}
	*(*native.TraceHeader)(unsafe.Pointer(&r.memory.Bytes()[0])) = header
	c.failure.with(func(words *layout.GroupStatus) {
		words.Trace = layout.TraceRing{Events: gpu.Ptr(header.Events), Count: gpu.Ptr(header.Count), Size: size}
	})
	if r.stop == nil {
		r.sites, r.stop, _ = c.dev.Internal().TraceLaunches(uint64(r.memory.Ptr()))
	}
	return nil
}

// events returns what is in the ring.
func (r *traceRing) events() ([]native.Event, uint64) {
	b := r.memory.Bytes()[native.TraceHead:]
	return native.EventsOf(unsafe.Slice((*native.Event)(unsafe.Pointer(&b[0])), len(b)/native.EventBytes))
}

// launched returns the sites of the device's launches. Where another communicator was first
// on the device, they are that one's.
func (r *traceRing) launched() []native.LaunchSite {
	if r.sites == nil {
		return nil
	}
	return r.sites()
}

// close frees the ring. If captured launches stamp it, the device does so.
func (r *traceRing) close() error {
	if r.stop != nil {
		r.stop()
	}
	for _, site := range r.launched() {
		if site.Captured {
			return nil
		}
	}
	return errors.Join(r.memory.Close(), r.count.Close())
}

// channel takes note of a channel of this rank: the i-th that a call has made to its peer.
// t may be nil.
func (t *tracer) channel(number uint32, call uint64, i int, name string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.channels[number] = timeline.Channel{Call: call, Index: i, Name: name}
}

// record returns what this rank has recorded so far, or nil once the ring is gone.
func (t *tracer) record() *timeline.Rank {
	cause := t.c.failure.err() // which may take note of a failure, with mu
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	c := t.c
	r := &timeline.Rank{
		Rank: c.Rank(), Size: c.Size(), Device: c.dev.String(), Host: watch.HostName(),
		Group: groupChannel, HostGroups: [2]uint32{hostGroupChannel, runnersChannel}, HostRanks: t.local,
		Channels: maps.Clone(t.channels), Sites: c.ring.launched(), Devices: t.devices, Hosts: t.hosts,
	}
	if cause != nil {
		r.Failure = cause.Error()
	}
	r.Kernels, r.KernelsDropped = c.ring.events()
	r.HostDoes, r.HostDropped = t.host.Events()
	return r
}
