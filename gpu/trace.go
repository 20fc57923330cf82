package gpu

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/native"
)

// A launchTrace has the launches of a device stamp their begin and end in a ring.
type launchTrace struct {
	ring uint64 // the address of a TraceRing

	mu      sync.Mutex
	numbers map[native.LaunchSite]uint64 // sites by what they are
	sites   []native.LaunchSite
	streams int
}

// mostSites bounds the sites that are told apart, since a program may launch a new grid each
// time. The last stands for all others.
const mostSites = 1 << 12

func (t *launchTrace) all() []native.LaunchSite {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]native.LaunchSite(nil), t.sites...)
}

// begin stamps the begin of a launch, and returns the number of its site. t may be nil.
func (t *launchTrace) begin(s *Stream, kernel string, cfg *backend.LaunchConfig, captured bool) uint64 {
	if t == nil {
		return 0
	}
	number := t.site(s, kernel, cfg, captured)
	// If it fails, the launch fails too.
	_ = s.b.Stamp(t.ring, native.WhatOf(native.EventLaunchBegin, 0), number)
	return number
}

// end stamps the end of a launch that begin returned.
func (t *launchTrace) end(s *Stream, number uint64) {
	if t != nil {
		_ = s.b.Stamp(t.ring, native.WhatOf(native.EventLaunchEnd, 0), number)
	}
}

// site returns the number of a site, from 0.
func (t *launchTrace) site(s *Stream, kernel string, cfg *backend.LaunchConfig, captured bool) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.traced == 0 {
		t.streams++
		s.traced = t.streams
	}
	site := native.LaunchSite{Kernel: kernel, Stream: s.traced, Grid: cfg.Grid, Block: cfg.Block, Captured: captured}
	number, known := t.numbers[site]
	if !known {
		if len(t.sites) == mostSites-1 {
			site = native.LaunchSite{Kernel: "other launches", Captured: captured}
		}
		if len(t.sites) == mostSites {
			return mostSites - 1
		}
		number = uint64(len(t.sites))
		t.numbers[site] = number
		t.sites = append(t.sites, site)
	}
	return number
}

// Samples of a device's clock: how many are taken, of which the best counts, and how long
// one may take.
const (
	clockSamples  = 16
	clockPatience = time.Second
)

// clock implements Clock of inside.Device.
func (d *Device) clock() (c native.Clock, err error) {
	const op = "gpu: compare the device's clock with the host's"
	if err := d.usable(op); err != nil {
		return c, err
	}
	if d.b.HostClock() {
		now := native.Now()
		return native.Clock{Host: now, Device: now}, nil
	}
	host, err := d.AllocHost(native.TraceHead + clockSamples*native.EventBytes)
	if err != nil {
		return c, err
	}
	count, err := d.Alloc(8)
	if err != nil {
		return c, errors.Join(err, host.Close())
	}
	s, err := d.NewStream()
	if err != nil {
		return c, errors.Join(err, count.Close(), host.Close())
	}
	if err = CopyIn(count, make([]byte, 8)); err == nil {
		clear(host.Bytes())
		*(*native.TraceHeader)(unsafe.Pointer(&host.Bytes()[0])) = native.TraceHeader{
			Events: uint64(host.Ptr()) + native.TraceHead, Count: uint64(count.Ptr()), Size: clockSamples,
		}
		c, err = d.sampleClock(op, s, host)
	}
	if err != nil {
		return c, errors.Join(err, s.Close()) // a stamp may still come: the device frees the memory
	}
	return c, errors.Join(s.Close(), host.Close(), count.Close())
}

// sampleClock has the device write its time, again and again, and returns the sample during
// which the least time passed.
func (d *Device) sampleClock(op string, s *Stream, host *Buffer) (best native.Clock, err error) {
	events := unsafe.Slice((*native.Event)(unsafe.Pointer(&host.Bytes()[native.TraceHead])), clockSamples)
	for i := range events {
		before := native.Now()
		if err := s.b.Stamp(uint64(host.Ptr()), native.WhatOf(native.EventClock, 0), 0); err != nil {
			return best, err
		}
		for atomic.LoadUint64(&events[i].Number) == 0 {
			if native.Now()-before > uint64(clockPatience) {
				return best, mscclgo.Errorf(mscclgo.ErrTimeout, op, "%v has not told its time within %v", d, clockPatience)
			}
			runtime.Gosched()
		}
		after := native.Now()
		if took := (after - before + 1) / 2; i == 0 || took < best.Error {
			best = native.Clock{Host: before + took, Device: events[i].Start, Error: took}
		}
	}
	return best, nil
}
