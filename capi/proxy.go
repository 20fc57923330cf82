package main

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

//export capi_proxy_create
func capi_proxy_create(handle C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	return newProxy(handle, nil, result)
}

//export capi_proxy_create_with_handler
func capi_proxy_create_with_handler(handle C.uintptr_t, f C.mscclgo_handler, user C.uintptr_t, result *C.uintptr_t) C.mscclgo_status {
	if f == nil {
		return call(func() error { return invalid("start a proxy", "the handler is NULL") })
	}
	return newProxy(handle, func(ctx context.Context, t fifo.Trigger) error { return serve(ctx, f, user, t) }, result)
}

func newProxy(handle C.uintptr_t, handler proxyservice.Handler, result *C.uintptr_t) C.mscclgo_status {
	const op = "start a proxy"
	return withGroup(op, handle, func(group *object, g *group) error {
		if err := isNull(op, unsafe.Pointer(result)); err != nil {
			return err
		}
		p, err := g.comm.ProxyService(context.Background(), proxyservice.ServiceOptions{Handler: handler})
		if err != nil {
			return err
		}
		objects.add(group, aProxy, p, p.Close).store(result)
		return nil
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
func serve(ctx context.Context, f C.mscclgo_handler, user C.uintptr_t, t fifo.Trigger) error {
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

//export capi_trigger_ends
func capi_trigger_ends(trigger *C.mscclgo_trigger, ms C.int64_t, result *C.int) C.mscclgo_status {
	const op = "wait for the end of a handler"
	return call(func() error {
		if err := isNull(op, unsafe.Pointer(trigger), unsafe.Pointer(result)); err != nil {
			return err
		}
		notServed := invalid(op, "no handler serves the trigger: it has returned, or this is a copy")
		found, ok := serving.Load(uintptr(unsafe.Pointer(trigger)))
		if !ok {
			return notServed
		}
		handler := found.(*served)
		wait, cancel := within(ms)
		defer cancel()
		if ms != 0 {
			select {
			case <-handler.ctx.Done():
			case <-handler.returned:
				if handler.ctx.Err() == nil {
					return notServed
				}
			case <-wait.Done():
			}
		}
		*result = truth(handler.ctx.Err() != nil)
		return nil
	})
}

// The handle for kernels, in C and in Go. An array of a negative length does not compile.
var (
	_ [unsafe.Sizeof(C.mscclgo_fifo_handle{}) - unsafe.Sizeof(devicecode.Fifo{})]byte
	_ [unsafe.Sizeof(devicecode.Fifo{}) - unsafe.Sizeof(C.mscclgo_fifo_handle{})]byte
)

//export capi_proxy_get_fifo
func capi_proxy_get_fifo(handle C.uintptr_t, result *C.mscclgo_fifo_handle) C.mscclgo_status {
	return storeHandle("get the ring of a proxy", aProxy, handle, result, func(p *proxyservice.ProxyService) (devicecode.Fifo, error) { return p.Fifo(), nil })
}

//export capi_proxy_destroy
func capi_proxy_destroy(handle C.uintptr_t) C.mscclgo_status {
	return call(func() error { return destroyAndCollect("destroy a proxy", aProxy, handle) })
}
