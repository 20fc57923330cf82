package capi

// #include "process.h"
import "C"

import (
	"time"

	"github.com/mscclgo/mscclgo/gpu"
)

func (c *call) streamCreate(device handle, result *handle) error {
	return c.to("make a stream").newStream(device, result, true, (*gpu.Device).NewStream)
}

func (c *call) streamWrap(device handle, foreign address, result *handle) error {
	return c.to("wrap a stream").newStream(device, result, false, func(d *gpu.Device) (*gpu.Stream, error) { return d.WrapStream(uintptr(foreign)) })
}

func (c *call) newStream(device handle, result *handle, ours bool, f func(*gpu.Device) (*gpu.Stream, error)) error {
	o, d := c.device(device)
	need(c, result)
	c.check(objects.sweep(o))
	s, err := f(d)
	if err == nil {
		objects.addStream(o, s, ours).store(result)
	}
	return err
}

// busy reports whether an object is a stream that has work. Of one that captures nothing is known.
func busy(o *object) bool {
	s, ok := o.value.(*gpu.Stream)
	if !ok {
		return false
	}
	done, err := s.Query()
	return !done && err == nil
}

// stopCapture ends a capture of a stream of ours, to know of its work.
func stopCapture(o *object) error {
	s, ok := o.value.(*gpu.Stream)
	if !ok || !o.ours {
		return nil
	}
	if _, err := s.Query(); err == nil {
		return nil
	}
	g, err := s.EndCapture()
	if err != nil {
		return nil // its work has failed, or other code captures
	}
	return g.Close()
}

func (c *call) streamDestroy(stream handle) error {
	o, err := objects.use(c.to("destroy a stream").op, aStream, stream)
	c.check(err)
	if o.ours && busy(o) {
		return objects.retire(c.op, o)
	}
	return objects.close(c.op, o)
}

func (c *call) streamHandle(stream handle, result *address) error {
	return put(c, result, address(c.to("get the handle of a stream").stream(stream).Handle()), nil)
}

func (c *call) streamSynchronize(stream handle, ms int64) error {
	return c.to("synchronize a stream").stream(stream).Synchronize(c.within(ms))
}

func (c *call) streamQuery(stream handle, done *C.int) error {
	is, err := c.to("query a stream").stream(stream).Query()
	return put(c, done, truth(is), err)
}

func truth(is bool) C.int {
	if is {
		return 1
	}
	return 0
}

func (c *call) streamCopy(stream, to handle, toOffset uint64, from handle, fromOffset, bytes uint64) error {
	s, dst, src := c.to("queue a copy").stream(stream), c.buffer(to), c.buffer(from)
	return s.Copy(dst, toOffset, src, fromOffset, bytes)
}

func (c *call) streamFill(stream, to handle, offset uint64, value int, bytes uint64) error {
	s, dst := c.to("queue a fill").stream(stream), c.buffer(to)
	if value < 0 || value > 255 {
		return invalid(c.op, "%d is not the value of a byte, 0 to 255", value)
	}
	return s.Fill(dst, offset, byte(value), bytes)
}

func (c *call) streamBeginCapture(stream handle) error {
	return c.to("begin a capture").stream(stream).BeginCapture()
}

func (c *call) streamEndCapture(stream handle, result *handle) error {
	o, s := get[*gpu.Stream](c.to("end a capture"), aStream, stream)
	// The stream is of a device, which its call of this function keeps.
	return makes(c, result, o.parent, aGraph, s.EndCapture)
}

func (c *call) graphLaunch(graph, stream handle) error {
	s := c.to("launch a graph").stream(stream)
	_, g := get[*gpu.Graph](c, aGraph, graph)
	return g.Launch(s)
}

func (c *call) eventCreate(device handle, result *handle) error {
	o, d := c.to("make an event").device(device)
	return makes(c, result, o, anEvent, d.NewEvent)
}

func (c *call) eventWrap(device handle, foreign address, result *handle) error {
	o, d := c.to("wrap an event").device(device)
	return makes(c, result, o, anEvent, func() (*gpu.Event, error) { return d.WrapEvent(uintptr(foreign)) })
}

func (c *call) eventHandle(event handle, result *address) error {
	return put(c, result, address(c.to("get the handle of an event").event(event).Handle()), nil)
}

func (c *call) eventRecord(event, stream handle) error {
	return c.to("record an event").stream(stream).Record(c.event(event))
}

func (c *call) eventWait(event, stream handle) error {
	return c.to("wait for an event").stream(stream).Wait(c.event(event))
}

func (c *call) eventSynchronize(event handle, ms int64) error {
	return c.to("synchronize an event").event(event).Synchronize(c.within(ms))
}

func (c *call) eventQuery(event handle, reached *C.int) error {
	is, err := c.to("query an event").event(event).Query()
	return put(c, reached, truth(is), err)
}

func (c *call) eventElapsed(start, end handle, ms *C.double) error {
	first, last := c.to("get the time between two events").event(start), c.event(end)
	took, err := last.Since(first)
	return put(c, ms, C.double(float64(took)/float64(time.Millisecond)), err)
}
