package capi

// #include "process.h"
import "C"

import (
	"context"
	"runtime/debug"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
)

// In Go, handles and addresses are numbers.
type (
	handle  = C.uintptr_t
	address = C.uintptr_t
)

// call is a call of a function of the API, each of which is a method. exports.go calls them, with numbers of
// Go, and end behind them.
type call struct {
	op     string // what it does, for errors
	err    error
	used   [8]*object // what it has found, which is not destroyed before its end
	n      int        // of used
	cancel context.CancelFunc
}

// misuse is what a call panics with that ends by an error: of check, need, and what finds an object.
type misuse struct{ error }

// to says what the call does. It comes before all that may fail.
func (c *call) to(op string) *call {
	c.op = op
	return c
}

// end ends a call and stores its result. Nothing that the call does ends the process.
func (c *call) end(status *C.mscclgo_status) {
	switch r := recover().(type) {
	case nil:
	case misuse:
		c.err = r.error
	default:
		c.err = mscclgo.Errorf(mscclgo.ErrSystem, "mscclgo: a call", "this is a mistake of the library, please report it: %v\n%s", r, debug.Stack())
	}
	if c.cancel != nil {
		c.cancel()
	}
	for c.n > 0 {
		c.n--
		c.used[c.n].done()
	}
	if c.err != nil {
		*status = fail(c.err)
	}
}

// check ends the call if there is an error.
func (c *call) check(err error) {
	if err != nil {
		panic(misuse{err})
	}
}

// need ends the call if a pointer is NULL.
func need[T any](c *call, pointer *T) {
	c.check(isNull(c.op, unsafe.Pointer(pointer)))
}

// within returns a context for a time in milliseconds, which has no end if it is negative, and ends with the call.
func (c *call) within(ms int64) (ctx context.Context) {
	ctx = context.Background()
	if ms < 0 || ms > int64(1<<62/time.Millisecond) {
		ctx, c.cancel = context.WithCancel(ctx)
	} else {
		ctx, c.cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
	}
	return ctx
}

// find returns the object of a handle, and its value.
func find[T any](c *call, k kind, h handle) (o *object, value T, err error) {
	o, found, err := objects.find(c.op, k, h)
	if err != nil {
		return nil, value, err
	}
	c.used[c.n] = o
	c.n++
	if o.left.Load() {
		return nil, value, invalid(c.op, "the group was re-formed: re-form %v too, before another call", k)
	}
	return o, found.(T), nil
}

// get is find, and ends the call where there is none.
func get[T any](c *call, k kind, h handle) (*object, T) {
	o, value, err := find[T](c, k, h)
	c.check(err)
	return o, value
}

func (c *call) device(h handle) (*object, *gpu.Device) { return get[*gpu.Device](c, aDevice, h) }

func (c *call) group(h handle) *group {
	_, g := get[*group](c, aGroup, h)
	return g
}

func (c *call) buffer(h handle) *gpu.Buffer {
	_, b := get[*gpu.Buffer](c, aBuffer, h)
	return b
}

func (c *call) stream(h handle) *gpu.Stream {
	_, s := get[*gpu.Stream](c, aStream, h)
	return s
}

func (c *call) event(h handle) *gpu.Event {
	_, e := get[*gpu.Event](c, anEvent, h)
	return e
}

func (c *call) kernel(h handle) *kernel {
	_, k := get[*kernel](c, aKernel, h)
	return k
}

// put stores a result, unless there is an error.
func put[T any](c *call, to *T, value T, err error) error {
	need(c, to)
	if err == nil {
		*to = value
	}
	return err
}

// putHandle is put for what kernels take by value: a Handle of Go, which has the bytes of a Result of C.
func putHandle[Handle, Result any](c *call, to *Result, h Handle, err error) error {
	return put(c, (*Handle)(unsafe.Pointer(to)), h, err)
}

// makes stores the handle of an object, of what f makes of another.
func makes[T interface{ Close() error }](c *call, result *handle, of *object, k kind, f func() (T, error)) error {
	need(c, result)
	made, err := f()
	if err == nil {
		objects.add(of, k, made, made.Close).store(result)
	}
	return err
}

// destroy destroys an object and what was made of it.
func (c *call) destroy(k kind, h handle) error {
	o, err := objects.use(c.op, k, h)
	c.check(err)
	return objects.close(c.op, o)
}

// What only destroys an object.

func (c *call) bufferDestroy(h handle) error { return c.to("destroy a buffer").destroy(aBuffer, h) }
func (c *call) deviceDestroy(h handle) error { return c.to("destroy a device").destroy(aDevice, h) }
func (c *call) elasticDestroy(h handle) error {
	return c.to("close an elastic server").destroy(anElastic, h)
}
func (c *call) eventDestroy(h handle) error  { return c.to("destroy an event").destroy(anEvent, h) }
func (c *call) graphDestroy(h handle) error  { return c.to("destroy a graph").destroy(aGraph, h) }
func (c *call) memberDestroy(h handle) error { return c.to("destroy a member").destroy(aMember, h) }
func (c *call) memoryChannelsDestroy(h handle) error {
	return c.to("destroy memory channels").destroy(memoryChannels, h)
}
func (c *call) moduleDestroy(h handle) error { return c.to("destroy a module").destroy(aModule, h) }
func (c *call) peerMemoryDestroy(h handle) error {
	return c.to("destroy peer memory").destroy(aPeerMemory, h)
}
func (c *call) pipesDestroy(h handle) error { return c.to("destroy pipes").destroy(aPipes, h) }
func (c *call) preparedDestroy(h handle) error {
	return c.to("destroy a prepared collective").destroy(aPrepared, h)
}
func (c *call) rendezvousDestroy(h handle) error {
	return c.to("destroy a rendezvous").destroy(aRendezvous, h)
}
