package emu

// #include "memory.h"
// #include "pool.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/race"
)

// device is an open emulated device. Devices of one ordinal share nothing but the name,
// so ranks that share a device cannot disturb each other.
type device struct {
	info    backend.Info
	ordinal int
	peers   []backend.Info
	pool    *C.pool

	mu     sync.Mutex
	table  []*mapping // by address
	used   uint64     // bytes of own device memory
	busy   int        // streams and copies that work
	idle   sync.Cond  // busy is 0
	grave  []*mapping // freed while the device was busy, to be dropped when it is idle
	closed bool
	ending chan struct{}     // closed by Close: all work ends
	lost   int               // operations that Close ended
	gate   *native.Gate      // for threads in C, until Close
	race   *race.Finder      // or nil
	turns  *explore.Explorer // or nil
	still  stillness

	standard map[uintptr]*workQueue // the default streams, by handle; guarded by mu
	modules  map[*module]bool       // that are loaded and not closed; guarded by mu
}

func newDevice(ordinal int, peers []backend.Info) (*device, error) {
	info := peers[ordinal]
	finder, err := race.Current()
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "emu: open "+info.Name, "%w", err)
	}
	turns, err := explore.FromEnv()
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, "emu: open "+info.Name, "%w", err)
	}
	d := &device{info: info, ordinal: ordinal, peers: peers, ending: make(chan struct{}), gate: native.NewGate(), race: finder, turns: turns, modules: map[*module]bool{}}
	d.idle.L = &d.mu
	d.info.LaunchOverlap = d.overlaps()
	finder.Joined()
	if d.pool = C.pool_new(C.uint32_t(d.residentBlocks())); d.pool == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, d.op("open"), "out of host memory")
	}
	d.list(true)
	return d, nil
}

// opened are the devices of the process that are open: a pointer may be of any of its number.
var opened struct {
	sync.Mutex
	devices  map[*device]bool
	captures uint64 // so far; a stream may be wrapped by another device than its own
}

func (d *device) list(is bool) {
	opened.Lock()
	defer opened.Unlock()
	if opened.devices == nil {
		opened.devices = map[*device]bool{}
	}
	if is {
		opened.devices[d] = true
	} else {
		delete(opened.devices, d)
	}
}

// owner returns another open Device of d's number that has memory at an address, or nil.
func (d *device) owner(ptr uint64) *device {
	opened.Lock()
	defer opened.Unlock()
	for o := range opened.devices {
		if o != d && o.info.UUID == d.info.UUID && o.has(ptr) {
			return o
		}
	}
	return nil
}

func (d *device) has(ptr uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.find(ptr) != nil
}

// op returns the operation of an error on this device.
func (d *device) op(format string, args ...any) string {
	return "emu: " + fmt.Sprintf(format, args...) + " on " + d.info.Name
}

func (d *device) residentBlocks() int { return d.info.Multiprocessors * d.info.MaxBlocksPerSM }

func (d *device) Info() backend.Info { return d.info }

func (d *device) CanAccess(uuid [16]byte) bool {
	return slices.ContainsFunc(d.peers, func(p backend.Info) bool { return p.UUID == uuid })
}

func (d *device) CanUpdate(uuid [16]byte) bool { return d.CanAccess(uuid) }

// begin counts a stream or copy as busy. It fails if the device is closed.
func (d *device) begin(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.gone(op)
	}
	d.busy++
	d.still.changes.Add(1)
	return nil
}

// end undoes begin. The last one drops the memory that was freed meanwhile.
func (d *device) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy--; d.busy > 0 {
		return
	}
	for _, m := range d.grave {
		d.forget(m)
		m.drop()
	}
	d.grave = nil
	d.idle.Broadcast()
}

func (d *device) gone(op string) error {
	return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the device is closed")
}

// accessed returns an error unless an operation could access its memory.
func (d *device) accessed(ok C.bool, what string, args ...any) error {
	if ok {
		return nil
	}
	return mscclgo.Errorf(mscclgo.ErrSystem, d.op(what, args...), "illegal memory access: the memory was closed")
}

func (d *device) CopyToHost(dst []byte, src uint64) error {
	if len(dst) == 0 {
		return nil
	}
	if err := d.begin(d.op("copy %d bytes to the host", len(dst))); err != nil {
		return err
	}
	defer d.end()
	d.turns.Self().Step("copy to the host")
	d.hostAccess(src, uint64(len(dst)), false)
	ok := C.memory_to_host(unsafe.Pointer(&dst[0]), C.uint64_t(src), C.uint64_t(len(dst)))
	return d.accessed(ok, "copy %d bytes from %#x to the host", len(dst), src)
}

func (d *device) CopyFromHost(dst uint64, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if err := d.begin(d.op("copy %d bytes from the host", len(src))); err != nil {
		return err
	}
	defer d.end()
	p := d.turns.Self()
	p.Step("copy from the host")
	defer p.Event() // it is written only now
	d.hostAccess(dst, uint64(len(src)), true)
	if zeros(src) {
		return d.accessed(d.fill(dst, 0, uint64(len(src))), "copy %d zeros from the host to %#x", len(src), dst)
	}
	ok := C.memory_from_host(C.uint64_t(dst), unsafe.Pointer(&src[0]), C.uint64_t(len(src)))
	return d.accessed(ok, "copy %d bytes from the host to %#x", len(src), dst)
}

// Close ends the work that still runs, and then releases all memory of the device and unloads its
// modules. It returns an error if it ended any work.
func (d *device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.list(false) // before mu, which owner takes within
	d.mu.Lock()
	close(d.ending)
	d.gate.Close()
	for d.busy > 0 {
		d.idle.Wait()
	}
	table, modules, lost := d.table, d.modules, d.lost
	d.table, d.modules = nil, nil
	d.mu.Unlock()

	d.still.close()
	C.pool_free(d.pool)
	for _, m := range table {
		d.forget(m)
		m.drop()
	}
	for m := range modules {
		m.Close()
	}
	if lost > 0 {
		return mscclgo.Errorf(mscclgo.ErrAborted, d.op("close"), "%d operations of streams had not ended; synchronize the streams first", lost)
	}
	return nil
}
