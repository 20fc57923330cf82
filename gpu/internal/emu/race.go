package emu

// #include "module.h"
import "C"

import "github.com/mscclgo/mscclgo/internal/race"

// What the race finder is told, if there is one. See package race.

// watch gives a mapping a shadow. fd is its memory's, or -1 for memory of the host.
func (d *device) watch(m *mapping, fd int) {
	if d.race != nil {
		d.race.Map(d.info.Name, m.base, uint64(len(m.bytes)), m.asked, fd)
	}
}

// forget takes the shadow away before a mapping is dropped for the last time.
func (d *device) forget(m *mapping) {
	if d.race != nil && m.holders.Load() == 1 {
		d.race.Unmap(m.base, uint64(len(m.bytes)), m.fd >= 0)
	}
}

// watchVariables gives the variables of a module that is compiled for the finder a shadow.
func (m *module) watchVariables() {
	if f := m.dev.race; f != nil && m.watched() {
		for _, s := range m.object.writable {
			f.MapVariables(m.dev.info.Name, m.raced, m.base+s.address, s.size, s.address)
		}
	}
}

// forgetVariables takes it away before the module is unloaded.
func (m *module) forgetVariables() {
	if f := m.dev.race; f != nil && m.watched() {
		for _, s := range m.object.writable {
			f.Unmap(m.base+s.address, s.size, true)
		}
	}
}

// hostAccess is an access by the host.
func (d *device) hostAccess(at, n uint64, write bool) {
	if d.race != nil {
		d.race.HostAccess(d.info.Name, at, n, write)
	}
}

// raced is what the race finder knows of a work queue, or nil.
func (d *device) raced() *race.Sequence {
	if d.race == nil {
		return nil
	}
	return d.race.NewSequence(d.info.Name)
}

// after has steps run after what the host has done before it queued them.
func (w *workQueue) after(steps []step) {
	if w.race == nil {
		return
	}
	steps[0].after = w.owner.race.HostNow()
}

// learned has the host know what a mark's stream had done.
func (m *mark) learned() {
	if f := m.queue.owner.race; f != nil {
		f.HostLearn(m.clock)
	}
}

// watched reports whether the module is compiled for the race finder.
func (m *module) watched() bool { return m.c.table.watched != 0 }

// race has the race finder know of a new module. It returns an error text if the module
// needs the finder and there is none.
func (m *module) race(object []byte) string {
	switch f := m.dev.race; {
	case f == nil && m.watched() && m.dev.turns == nil:
		return "it is compiled for the race finder or for exploring schedules, which does not run in this process"
	case f == nil: // or there is the explorer
	case m.watched():
		m.raced = f.AddModule(object)
	default:
		f.Unwatched()
	}
	return ""
}
