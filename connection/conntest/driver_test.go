package conntest

import (
	"context"
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/connection"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// driver is a transport of its own: a goroutine copies, between emulated devices
// of one process. It has the fault that it is told to have, or none.
type driver struct {
	fault  string
	writes int
	known  map[uint32]*registeredmem.Memory

	mu      sync.Mutex
	changed sync.Cond
	ring    [64]op
	queued  uint64
	done    uint64
	held    bool
	dead    bool // the peer is
	closed  bool
	ended   chan struct{}
}

type op struct {
	dst, src []byte
	update   bool
	value    uint64
	torn     bool
	change   func(word *uint64, value uint64, split bool) (old uint64) // or nil
	split    bool
	late     bool   // it is told late what the word was
	kept     []byte // of the place in the ring
}

func newDriver(fault string) *driver {
	d := &driver{fault: fault, ended: make(chan struct{})}
	d.changed.L = &d.mu
	go d.run()
	return d
}

var errDead = mscclgo.Errorf(mscclgo.ErrRemote, "memory", "the peer is dead")

// add queues an operation.
func (d *driver) add(o op, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.queued-d.done == uint64(len(d.ring)) && !d.dead && !d.closed {
		d.changed.Wait()
	}
	if d.dead && d.fault != "deaf" {
		return errDead
	}
	place := &d.ring[d.queued%uint64(len(d.ring))]
	o.kept = place.kept
	if data != nil {
		o.kept = append(o.kept[:0], data...)
		o.src = o.kept
		if d.fault == "borrow" {
			o.src = data
		}
	}
	*place = o
	d.queued++
	d.changed.Broadcast()
	return nil
}

func (d *driver) Ready(connection.Kind, uint64) bool {
	if d.fault == "eager" {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead || d.closed || d.queued-d.done+2 <= uint64(len(d.ring)) && d.fault != "shy"
}

func (d *driver) Submit(o connection.Operation) error {
	switch o.Kind {
	case connection.Write:
		return d.write(o.Theirs, o.Offset, o.Own, o.OwnOffset, o.N)
	case connection.WriteBytes:
		return d.add(op{dst: o.Theirs.Buffer().HostBytes()[o.Offset : o.Offset+o.N]}, o.Data)
	case connection.Read:
		return d.read(o.Own, o.OwnOffset, o.Theirs, o.Offset, o.N)
	case connection.Store:
		return d.store(o.Theirs, o.Offset, o.To)
	case connection.Add:
		return d.increase(o.Theirs, o.Offset, o.To)
	case connection.Exchange:
		return d.exchange(o.Own, o.OwnOffset, o.Theirs, o.Offset, o.To)
	}
	return d.update(o.Theirs, o.Offset, o.To)
}

func (d *driver) write(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	switch d.fault {
	case "short":
		n--
	case "lose":
		if d.writes++; d.writes%1000 == 999 {
			return nil
		}
	case "allocate":
		d.ring[0].kept = make([]byte, 100)
	case "beside":
		n = min(n+1, dst.Size()-dstOffset, src.Size()-srcOffset)
	case "refuse":
		return mscclgo.Errorf(mscclgo.ErrSystem, "memory", "no")
	case "alike":
		if d.known == nil {
			d.known = map[uint32]*registeredmem.Memory{}
		}
		if d.known[dst.ID()] == nil {
			d.known[dst.ID()] = dst
		}
		dst = d.known[dst.ID()]
	}
	return d.add(op{dst: dst.Buffer().HostBytes()[dstOffset : dstOffset+n], src: src.Buffer().HostBytes()[srcOffset : srcOffset+n]}, nil)
}

// lateness is how late the fault "late" is: longer than a test takes to look on a busy machine.
const lateness = 2 * time.Millisecond

func (d *driver) read(dst *registeredmem.Memory, dstOffset uint64, src *registeredmem.Memory, srcOffset, n uint64) error {
	switch d.fault {
	case "short":
		n--
	case "beside":
		n = min(n+1, dst.Size()-dstOffset, src.Size()-srcOffset)
	}
	o := op{dst: dst.Buffer().HostBytes()[dstOffset : dstOffset+n], src: src.Buffer().HostBytes()[srcOffset : srcOffset+n]}
	switch d.fault {
	case "peek":
		o.do()
		return nil
	case "late":
		later := o
		time.AfterFunc(lateness, later.do)
		return nil
	}
	return d.add(o, nil)
}

func (d *driver) InlineLimit() uint64 { return 100 }

func (d *driver) update(dst *registeredmem.Memory, dstOffset, to uint64) error {
	o := op{dst: dst.Buffer().HostBytes()[dstOffset : dstOffset+8], update: true, value: to, torn: d.fault == "tear"}
	if d.fault == "narrow" {
		o.value &= 1<<32 - 1
	}
	if d.fault == "hasty" {
		o.do()
		return nil
	}
	return d.add(o, nil)
}

func (d *driver) store(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	if d.fault == "late" {
		o := op{dst: dst.Buffer().HostBytes()[dstOffset : dstOffset+8], update: true, value: value}
		time.AfterFunc(lateness, o.do)
		return nil
	}
	return d.update(dst, dstOffset, value)
}

func (d *driver) increase(dst *registeredmem.Memory, dstOffset uint64, value uint64) error {
	o := op{dst: dst.Buffer().HostBytes()[dstOffset : dstOffset+8], change: add, value: value, split: d.fault == "split"}
	switch d.fault {
	case "narrow":
		o.value &= 1<<32 - 1
	case "lose":
		if d.writes++; d.writes%1000 == 999 {
			return nil
		}
	case "late":
		later := o
		time.AfterFunc(lateness, later.do)
		return nil
	case "hasty":
		o.do()
		return nil
	}
	return d.add(o, nil)
}

func (d *driver) exchange(own *registeredmem.Memory, ownOffset uint64, theirs *registeredmem.Memory, offset, value uint64) error {
	o := op{
		dst: theirs.Buffer().HostBytes()[offset : offset+8], src: own.Buffer().HostBytes()[ownOffset : ownOffset+8],
		change: exchange, value: value, split: d.fault == "split", late: d.fault == "tardy",
	}
	if d.fault == "peek" {
		o.do()
		return nil
	}
	return d.add(o, nil)
}

// add and exchange are atomic, or split.
func add(word *uint64, value uint64, split bool) uint64 {
	if split {
		old := atomic.LoadUint64(word)
		runtime.Gosched()
		atomic.StoreUint64(word, old+value)
		return old
	}
	return atomic.AddUint64(word, value) - value
}

func exchange(word *uint64, value uint64, split bool) uint64 {
	if split {
		old := atomic.LoadUint64(word)
		runtime.Gosched()
		atomic.StoreUint64(word, value)
		return old
	}
	return atomic.SwapUint64(word, value)
}

func (d *driver) NewMark() (connection.DriverMark, error) {
	if d.fault == "stubborn" {
		return stubbornMark{&mark{d: d}}, nil
	}
	return &mark{d: d}, nil
}

// Close is called once all is done, or will never be.
func (d *driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.changed.Broadcast()
	d.mu.Unlock()
	<-d.ended
	if d.fault == "stuck" {
		select {}
	}
	return nil
}

// run does what is queued.
func (d *driver) run() {
	defer close(d.ended)
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for !d.closed && (d.queued == d.done || d.held || d.dead) {
			d.changed.Wait()
		}
		if d.closed {
			return
		}
		at := d.done
		if d.fault == "swap" && d.queued-at > 1 && at%2 == 0 {
			one, other := &d.ring[at%uint64(len(d.ring))], &d.ring[(at+1)%uint64(len(d.ring))]
			*one, *other = *other, *one
		}
		o := d.ring[at%uint64(len(d.ring))]
		d.mu.Unlock()
		if d.fault != "" && at%8 == 0 {
			time.Sleep(100 * time.Microsecond) // so that some fault shows
		}
		o.do()
		d.mu.Lock()
		d.done++
		d.changed.Broadcast()
	}
}

func (o *op) do() {
	// A driver that lies may find the memory gone.
	debug.SetPanicOnFault(true)
	defer func() { recover() }()
	if o.torn {
		binary.NativeEndian.PutUint32(o.dst, uint32(o.value))
		runtime.Gosched()
	}
	if o.update {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&o.dst[0])), o.value)
		return
	}
	if o.change != nil {
		old, into := o.change((*uint64)(unsafe.Pointer(&o.dst[0])), o.value, o.split), o.src
		switch {
		case into != nil && o.late:
			later := op{dst: into, update: true, value: old}
			time.AfterFunc(lateness, later.do)
		case into != nil:
			binary.NativeEndian.PutUint64(into, old)
		}
		return
	}
	copy(o.dst, o.src)
}

// set changes the driver's state.
func (d *driver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
	d.changed.Broadcast()
}

type mark struct {
	d     *driver
	until uint64
}

func (m *mark) Set() error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.until = m.d.queued
	return nil
}

func (m *mark) Reached() (bool, error) {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.fault == "patient" && d.done < m.until && !d.closed {
		d.changed.Wait()
	}
	switch {
	case d.done >= m.until, d.fault == "lie":
		return true, nil
	case d.fault == "mute":
		return false, nil
	case d.dead && d.fault != "deaf":
		return false, errDead
	}
	return false, nil
}

func (*mark) Close() error { return nil }

// stubbornMark waits whatever its context.
type stubbornMark struct{ *mark }

func (m stubbornMark) Wait(context.Context) error {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for m.d.done < m.until {
		m.d.changed.Wait()
	}
	return nil
}

// memoryRanks is a Maker of ranks with a driver that has a fault, or none.
func memoryRanks(fault string) Maker {
	return func(t testing.TB) (a, b *Rank) {
		var ranks [2]*Rank
		var drivers [2]*driver
		for i := range ranks {
			device := testerr.Must(gpu.Open("emu:0"))(t)
			t.Cleanup(func() { device.Close() })
			registry := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Rank: i, Device: device, Group: [16]byte{1}, Secret: [32]byte{2}, Timeout: patience}))(t)
			t.Cleanup(func() { registry.Close() })
			drivers[i] = newDriver(fault)
			c := testerr.Must(connection.New(registry, 1-i, registeredmem.CudaIPC, drivers[i]))(t)
			t.Cleanup(func() { soon(func() { c.Close() }) }) // a fault may have it wait for ever
			d := drivers[i]
			ranks[i] = &Rank{Registry: registry, Connection: c}
			ranks[i].Hold = func() func() {
				d.set(func() { d.held = true })
				return func() { d.set(func() { d.held = false }) }
			}
		}
		for i, r := range ranks {
			other := drivers[1-i]
			r.Kill = func() { other.set(func() { other.dead = true }) }
		}
		return ranks[0], ranks[1]
	}
}
