package main

// #include "process.h"
import "C"

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// kind is the kind of a handle, the highest byte of its number.
type kind uint8

const (
	aGroup kind = iota + 1
	aRendezvous
	aDevice
	aBuffer
	aStream
	anEvent
	aGraph
	aModule
	aKernel
	memoryChannels
	portChannels
	aProxy
	aPeerMemory
	aPrepared
	aPipes
)

const kindShift = 56

var kindNames = [...]string{"no handle", "a group", "a rendezvous", "a device", "a buffer", "a stream", "an event", "a graph", "a module",
	"a kernel", "memory channels", "port channels", "a proxy", "peer memory", "a prepared call", "pipes"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "no handle"
}

// object is what a handle stands for.
type object struct {
	id       uint64
	value    any
	close    func() error // or nil
	parent   *object      // what it was made of
	children map[*object]bool
	owned    string // who destroys it, if the caller may not

	// users is the number of calls that use the object now, or gone.
	users atomic.Int64

	named map[string]*object // what once made of it

	ours bool // a stream that is not other code's
}

const gone = -1

func (o *object) kind() kind { return kind(o.id >> kindShift) }

// objects is the table of all handles. It is the one state of the process in this module
// besides the driver, the log and the handlers that are called now (serving), since the functions of
// C have no other place for it.
var objects = table{all: map[uint64]*object{}}

// table finds objects by their handles.
type table struct {
	mu   sync.RWMutex
	all  map[uint64]*object
	last uint64 // number given to an object
}

// add makes an object, of what another was made of. The caller uses the parent meanwhile.
func (t *table) add(parent *object, k kind, value any, close func() error) *object {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(parent, k, value, close)
}

// addStream is add for a stream of a device, which is ours or other code's.
func (t *table) addStream(device *object, s *gpu.Stream, ours bool) *object {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.put(device, aStream, s, s.Close)
	o.ours = ours
	return o
}

// once is add for a parent that has one such object of a name.
func (t *table) once(parent *object, k kind, name string, value any, close func() error) *object {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := parent.named[name]
	if o == nil {
		if parent.named == nil {
			parent.named = map[string]*object{}
		}
		o = t.put(parent, k, value, close)
		parent.named[name] = o
	}
	return o
}

// put adds an object to the table, which is locked.
func (t *table) put(parent *object, k kind, value any, close func() error) *object {
	t.last++
	o := &object{id: uint64(k)<<kindShift | t.last, value: value, close: close, parent: parent, children: map[*object]bool{}}
	if parent != nil {
		parent.children[o] = true
	}
	t.all[o.id] = o
	return o
}

// use returns the object of a handle, which is not destroyed until done.
func (t *table) use(op string, k kind, handle C.uintptr_t) (*object, error) {
	t.mu.RLock()
	o := t.all[uint64(handle)]
	t.mu.RUnlock()
	switch {
	case o == nil:
		return nil, wrongHandle(op, k, uint64(handle))
	case o.kind() != k:
		return nil, invalid(op, "%v is needed, and the handle is that of %v", k, o.kind())
	}
	for {
		n := o.users.Load()
		if n == gone {
			return nil, wrongHandle(op, k, uint64(handle))
		}
		if o.users.CompareAndSwap(n, n+1) {
			return o, nil
		}
	}
}

// done ends a use.
func (o *object) done() {
	if o != nil {
		o.users.Add(-1)
	}
}

func wrongHandle(op string, k kind, handle uint64) error {
	if handle == 0 {
		return invalid(op, "the handle of %v is NULL", k)
	}
	if of := kind(handle >> kindShift); of == k && handle&(1<<kindShift-1) <= objects.issued() {
		return invalid(op, "what the handle stands for, %v, was destroyed, by itself or with its group or device", k)
	}
	return invalid(op, "%#x is not the handle of %v", handle, k)
}

func isUsed(op string, o *object) error {
	return invalid(op, "another thread is in a call that uses %v of it; wait for that call first", o.kind())
}

func (t *table) issued() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.last
}

// destroy closes an object and what was made of it.
func (t *table) destroy(op string, k kind, handle C.uintptr_t) error {
	o, err := t.use(op, k, handle)
	if err != nil {
		return err
	}
	return t.close(op, o)
}

// close closes an object, which the caller uses, and what was made of it. What it was made of is
// in use meanwhile, so that it is not closed under it.
func (t *table) close(op string, o *object) error {
	order, err := t.take(op, o)
	if err != nil {
		return err
	}
	defer o.parent.done()
	errs := leaveGroups(order)
	for _, o := range order {
		if o.close != nil {
			errs = append(errs, o.close())
		}
	}
	return errors.Join(errs...)
}

// take takes an object, which the caller uses, and all that was made of it out of the table, and
// begins a use of what it was made of. It returns them in the order in which they are to be closed.
func (t *table) take(op string, o *object) ([]*object, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.owned != "" {
		o.done()
		return nil, invalid(op, "it is %s, and destroyed with that", o.owned)
	}
	order := o.order(nil)
	for _, each := range order {
		if p, ok := each.value.(*proxyservice.ProxyService); ok && native.InProxy(p) {
			o.done()
			return nil, invalid(op, "a handler calls it, for which its proxy would wait; call it on another thread")
		}
	}
	for i, each := range order {
		free := int64(0)
		if each == o {
			free = 1 // this call
		}
		if !each.users.CompareAndSwap(free, gone) {
			for _, taken := range order[:i] {
				taken.users.Store(0)
				if taken == o {
					taken.users.Store(1)
				}
			}
			o.done()
			return nil, isUsed(op, each)
		}
	}
	for _, each := range order {
		delete(t.all, each.id)
	}
	if o.parent != nil {
		delete(o.parent.children, o)
		o.parent.users.Add(1) // it is not gone: whoever takes it takes this one too
	}
	return order, nil
}

// retire takes a stream, which the caller uses and which has work, out of the table. It stays a child of
// its device, which does not close before the work is done where it can wait for that.
func (t *table) retire(op string, o *object) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !o.users.CompareAndSwap(1, 0) {
		o.done()
		return isUsed(op, o)
	}
	delete(t.all, o.id)
	return nil
}

// sweep closes the retired streams of a device, which the caller uses, whose work is done.
func (t *table) sweep(device *object) error {
	var errs []error
	for _, o := range t.retired(device) {
		if !busy(o) && t.leave(o) {
			errs = append(errs, o.close())
		}
	}
	return errors.Join(errs...)
}

func (t *table) retired(device *object) (all []*object) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for o := range device.children {
		if o.ours && t.all[o.id] == nil {
			all = append(all, o)
		}
	}
	return all
}

// leave takes a retired stream from its device, and reports whether it is the caller's to close: not that of
// another thread, or of a call that found it just before it was retired.
func (t *table) leave(o *object) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !o.users.CompareAndSwap(0, gone) {
		return false
	}
	delete(o.parent.children, o)
	return true
}

// order appends what was made of o, the newest first, and o. Two are closed before what was made
// of them: a group before its device, as it ends the waits of kernels, and waits for the peers
// that use the memory; and a proxy before its channels and pipes, whose ids it keeps.
func (o *object) order(all []*object) []*object {
	var children []*object
	for c := range o.children {
		children = append(children, c)
	}
	slices.SortFunc(children, func(a, b *object) int { return cmp.Compare(b.serial(), a.serial()) })
	var after []*object
	for _, c := range children {
		if c.kind() == aDevice || o.kind() == aProxy {
			after = append(after, c)
			continue
		}
		all = c.order(all)
	}
	all = append(all, o)
	for _, c := range after {
		all = c.order(all)
	}
	return all
}

// has reports whether an object is in the table: it is not being destroyed.
func (t *table) has(o *object) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[o.id] == o
}

// part returns n bytes at an address of a device, if they are part of one of its buffers.
func (t *table) part(device *object, at gpu.Ptr, n uint64) *gpu.Buffer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for o := range device.children {
		b, ok := o.value.(*gpu.Buffer)
		if ok && at >= b.Ptr() && uint64(at-b.Ptr()) <= b.Size() {
			if part, err := b.Slice(uint64(at-b.Ptr()), n); err == nil {
				return part
			}
		}
	}
	return nil
}

func (o *object) serial() uint64 { return o.id & (1<<kindShift - 1) }

// store stores the handle of a new object.
func (o *object) store(to *C.uintptr_t) { *to = C.uintptr_t(o.id) }

// of has f called with the value of a handle, which is not destroyed meanwhile.
func of[T any](op string, k kind, handle C.uintptr_t, f func(*object, T) error) error {
	o, err := objects.use(op, k, handle)
	if err != nil {
		return err
	}
	defer o.done()
	return f(o, o.value.(T))
}

// storeHandle stores what kernels take by value of the object of a handle: a Handle of Go, which has the
// bytes of a Result of C.
func storeHandle[T, Handle, Result any](op string, k kind, handle C.uintptr_t, result *Result, get func(T) (Handle, error)) C.mscclgo_status {
	return call(func() error {
		return of(op, k, handle, func(_ *object, value T) error {
			if err := isNull(op, unsafe.Pointer(result)); err != nil {
				return err
			}
			h, err := get(value)
			if err == nil {
				*(*Handle)(unsafe.Pointer(result)) = h
			}
			return err
		})
	})
}

// optional is of for a handle that may be NULL, with which f is called with nothing.
func optional[T any](op string, k kind, handle C.uintptr_t, f func(*object, T) error) error {
	if handle == 0 {
		var none T
		return f(nil, none)
	}
	return of(op, k, handle, f)
}

// The functions that take a handle call these.

func withGroup(op string, handle C.uintptr_t, f func(*object, *group) error) C.mscclgo_status {
	return call(func() error { return of(op, aGroup, handle, f) })
}

func withDevice(op string, handle C.uintptr_t, f func(*object, *gpu.Device) error) C.mscclgo_status {
	return call(func() error { return of(op, aDevice, handle, f) })
}

func withBuffer(op string, handle C.uintptr_t, f func(*object, *gpu.Buffer) error) C.mscclgo_status {
	return call(func() error { return of(op, aBuffer, handle, f) })
}

func withStream(op string, handle C.uintptr_t, f func(*object, *gpu.Stream) error) C.mscclgo_status {
	return call(func() error { return of(op, aStream, handle, f) })
}

func withEvent(op string, handle C.uintptr_t, f func(*object, *gpu.Event) error) C.mscclgo_status {
	return call(func() error { return of(op, anEvent, handle, f) })
}

// group is what the handle of a group stands for.
type group struct {
	comm    *communicator.Communicator
	device  *object
	options collective.Options // of runner

	mu     sync.Mutex
	runner *collective.Runner // made by the first collective

	last []func() error // called when the other ranks have left the group too

	spare atomic.Pointer[collective.Group] // empty, for the next launch of messages; or nil

	// Memory of calls for which the caller vouched, of the last that came to each place: programs
	// use the same again and again.
	vouched [16]atomic.Pointer[gpu.Buffer]
}
