package capi

// #include "process.h"
import "C"

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
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
	anElastic
	aMember
)

const kindShift = 56

var kindNames = [...]string{"no handle", "a group", "a rendezvous", "a device", "a buffer", "a stream", "an event", "a graph", "a module",
	"a kernel", "memory channels", "port channels", "a proxy", "peer memory", "a prepared call", "pipes", "an elastic server", "a member"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "no handle"
}

// object is what a handle stands for.
type object struct {
	id       uint64
	value    any          // of a group it changes: see table.follow
	close    func() error // or nil
	parent   *object      // what it was made of
	children map[*object]bool
	owned    string // who destroys it, if the caller may not

	// users is the number of calls that use the object now, or gone, or changing.
	users atomic.Int64

	left atomic.Bool // its group was re-formed, and it was not carried to the new one yet

	named map[string]*object // what once made of it

	ours bool // a stream that is not other code's
}

const (
	gone     = -1
	changing = -2 // a call changes what the object is, and no other may use it; see carry
)

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
func (t *table) use(op string, k kind, h handle) (*object, error) {
	o, _, err := t.find(op, k, h)
	return o, err
}

// find is use that also returns the object's value, which is another one once a group was re-formed.
func (t *table) find(op string, k kind, h handle) (*object, any, error) {
	var value any
	var before int64
	t.mu.RLock()
	o := t.all[uint64(h)]
	if o != nil && o.kind() == k {
		// With the table locked, or the object could be gone for a while: see seize.
		value, before = o.value, o.begin()
	}
	t.mu.RUnlock()
	switch {
	case o == nil || before == gone:
		return nil, nil, wrongHandle(op, k, uint64(h))
	case o.kind() != k:
		return nil, nil, invalid(op, "%v is needed, and this is the handle of %v", k, o.kind())
	case before == changing:
		return nil, nil, isUsed(op, o)
	}
	return o, value, nil
}

// begin begins a use of an object, and returns the number of those before, or why there is none.
func (o *object) begin() int64 {
	for {
		n := o.users.Load()
		if n < 0 || o.users.CompareAndSwap(n, n+1) {
			return n
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
		return invalid(op, "the object of the handle, %v, was destroyed: by itself, with its group or device, or when its group was re-formed", k)
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
	if err := seize(op, order, o); err != nil {
		o.done()
		return nil, err
	}
	t.remove(order)
	if o.parent != nil {
		delete(o.parent.children, o)
		o.parent.users.Add(1) // it is not gone: whoever takes it takes this one too
	}
	return order, nil
}

// seize has objects be gone, of which the caller uses one, or none if that is nil. After an error they are
// as before. The table is locked until they are out of it, or released.
func seize(op string, all []*object, used *object) error {
	for _, o := range all {
		if p, ok := o.value.(*proxyservice.ProxyService); ok && p.Internal().InHandler() {
			return invalid(op, "a handler calls it, and its proxy would wait for the handler; call it on another thread")
		}
	}
	for i, o := range all {
		if !o.users.CompareAndSwap(o.usersBut(used), gone) {
			release(all[:i], used)
			return isUsed(op, o)
		}
	}
	return nil
}

// release undoes seize.
func release(all []*object, used *object) {
	for _, o := range all {
		o.users.Store(o.usersBut(used))
	}
}

// usersBut returns the users of an object that nobody uses but the caller, who uses one.
func (o *object) usersBut(used *object) int64 {
	if o == used {
		return 1
	}
	return 0
}

// remove takes objects out of the table, which is locked.
func (t *table) remove(all []*object) {
	for _, o := range all {
		delete(t.all, o.id)
	}
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

// leave takes a retired stream from its device, and reports whether it is the caller's to close: another
// thread's is not, nor one whose work a call waits for.
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
	var after []*object
	for _, c := range o.newest() {
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

// newest returns what was made of o alone, the newest first.
func (o *object) newest() []*object {
	return slices.SortedFunc(maps.Keys(o.children), func(a, b *object) int { return cmp.Compare(b.serial(), a.serial()) })
}

// has reports whether an object is in the table: it is not being destroyed.
func (t *table) has(o *object) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.all[o.id] == o
}

// address returns an error if what should be an address is a handle, which C takes for a void*.
func (t *table) address(op, which string, at address) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o := t.all[uint64(at)]
	if o == nil {
		return nil
	}
	return invalid(op, "%s is the handle of %v, and no address; mscclgo_buffer_pointer stores the address of a buffer", which, o.kind())
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
func (o *object) store(to *handle) { *to = handle(o.id) }

// group is what the handle of a group stands for.
type group struct {
	comm    *communicator.Communicator
	device  *object
	options collective.Options // of runner

	mu       sync.Mutex
	runner   *collective.Runner // made by the first collective, or carried by it
	before   *collective.Runner // of the group before, which that carries; or nil
	captured bool               // runner was carried, and graphs of the group before are right

	below func() error   // closes what the communicator is on, after it; or nil
	last  []func() error // called when the other ranks have left the group too

	reforming sync.Mutex // held by a call that re-forms the group
	ending    []*object  // what that has taken out of the table, and could not close yet, in order

	spare atomic.Pointer[collective.Group] // empty, for the next launch of messages; or nil

	// Memory of calls for which the caller vouched, of the last that came to each place: programs
	// use the same again and again.
	vouched [16]atomic.Pointer[gpu.Buffer]
}
