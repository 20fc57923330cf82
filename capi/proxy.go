package capi

// #include "process.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/fifo"
	"github.com/mscclgo/mscclgo/proxyservice"
)

func (c *call) proxyCreate(group handle, result *handle) error {
	return c.newProxy(group, nil, result)
}

func (c *call) proxyCreateWithHandler(group handle, f C.mscclgo_handler, user address, result *handle) error {
	if f == nil {
		return invalid("start a proxy", "the handler is NULL")
	}
	return c.newProxy(group, func(ctx context.Context, t fifo.Trigger) error { return serve(ctx, f, user, t) }, result)
}

func (c *call) newProxy(of handle, handler proxyservice.Handler, result *handle) error {
	owner, g := get[*group](c.to("start a proxy"), aGroup, of)
	return makes(c, result, owner, aProxy, func() (*proxyservice.ProxyService, error) {
		return g.comm.ProxyService(context.Background(), proxyservice.ServiceOptions{Handler: handler})
	})
}

// serving has the calls of handlers now, each a *served, by the addresses of their triggers: the
// functions of C have no other place for them.
var serving sync.Map

// served is a call of a handler.
type served struct {
	ctx      context.Context // ends when the handler is to return
	returned chan struct{}   // closed when it has
}

// serve has a handler of C serve a trigger.
func serve(ctx context.Context, f C.mscclgo_handler, user address, t fifo.Trigger) error {
	trigger := &C.mscclgo_trigger{a: C.uint64_t(t.A), b: C.uint64_t(t.B), c: C.uint64_t(t.C), detail: C.uint64_t(t.Detail), kind: C.uint32_t(t.Kind)}
	var why [C.MSCCLGO_WHY_BYTES]C.char
	at := uintptr(unsafe.Pointer(trigger))
	now := &served{ctx, make(chan struct{})}
	serving.Store(at, now)
	status := C.capi_handle(f, user, trigger, &why[0])
	serving.Delete(at)
	close(now.returned)        // for other threads that wait
	runtime.KeepAlive(trigger) // or another could be at its address
	if status == 0 {
		return nil
	}
	why[len(why)-1] = 0
	if why[0] == 0 {
		return fmt.Errorf("the handler returned %d without a reason; store one in why", int(status))
	}
	return errors.New(C.GoString(&why[0]))
}

func (c *call) triggerEnds(trigger *C.mscclgo_trigger, ms int64, result *C.int) error {
	need(c.to("wait for the end of a handler"), trigger)
	need(c, result)
	notServed := invalid(c.op, "no handler serves the trigger: it has returned, or this is a copy")
	found, ok := serving.Load(uintptr(unsafe.Pointer(trigger)))
	if !ok {
		return notServed
	}
	handler := found.(*served)
	if ms != 0 {
		select {
		case <-handler.ctx.Done():
		case <-handler.returned:
			if handler.ctx.Err() == nil {
				return notServed
			}
		case <-c.within(ms).Done():
		}
	}
	return put(c, result, truth(handler.ctx.Err() != nil), nil)
}

// The handle for kernels, in C and in Go.
var _ [unsafe.Sizeof(C.mscclgo_fifo_handle{})]byte = [unsafe.Sizeof(devicecode.Fifo{})]byte{}

func (c *call) proxyGetFifo(proxy handle, result *C.mscclgo_fifo_handle) error {
	_, p := get[*proxyservice.ProxyService](c.to("get the ring of a proxy"), aProxy, proxy)
	return putHandle(c, result, p.Fifo(), nil)
}

func (c *call) proxyDestroy(proxy handle) error {
	return c.to("destroy a proxy").destroyAndCollect(aProxy, proxy)
}
