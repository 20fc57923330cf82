package emu

/*
#include "launch.h"
*/
import "C"

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/internal/race"
)

// guardBytes lie before and behind each mapping, and accesses to them fault: what a kernel does
// beside its memory is its error, and does not change other memory. The guard behind begins with a
// page, so that only the race finder knows the end of memory that is no multiple of one.
const guardBytes = 1 << 20

// mostGuarded bounds the mappings with guards: each takes two more of the 65530 that Linux lets a process
// have, which a large group's connections may need. Mappings beyond it have none.
const mostGuarded = 8192

// guardedMappings counts the mappings of the process that have guards.
var guardedMappings atomic.Int32

// region is mapped memory, perhaps between two guards.
type region struct {
	bytes []byte
	guard uintptr // bytes before and behind them
}

// mapRegion maps a descriptor, or host memory if it is -1.
func mapRegion(size uint64, fd int) (region, error) {
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	if guardedMappings.Add(1) > mostGuarded {
		guardedMappings.Add(-1)
		at, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return region{}, err
		}
		return region{unsafe.Slice((*byte)(at), size), 0}, nil
	}
	r := region{guard: guardBytes}
	room, err := unix.MmapPtr(-1, 0, nil, r.room(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		guardedMappings.Add(-1)
		return region{}, err
	}
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(room, guardBytes), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(room, r.room(size))
		guardedMappings.Add(-1)
		return region{}, err
	}
	r.bytes = unsafe.Slice((*byte)(at), size)
	return r, nil
}

// room returns the bytes of address space that a region of a size takes.
func (r *region) room(size uint64) uintptr {
	page := uint64(os.Getpagesize())
	return uintptr((size+page-1)/page*page) + 2*r.guard
}

// unmap does not fail, as mapRegion has made the region.
func (r *region) unmap() {
	_ = unix.MunmapPtr(unsafe.Add(unsafe.Pointer(&r.bytes[0]), -int(r.guard)), r.room(uint64(len(r.bytes))))
	if r.guard > 0 {
		guardedMappings.Add(-1)
	}
}

// beside says which memory an access that faulted is beside, or "".
func (d *device) beside(access C.fault_access) string {
	if access.at == 0 {
		return ""
	}
	kind, at := [...]string{"an access", "a read", "a write"}[access.kind], uint64(access.at)
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := slices.BinarySearchFunc(d.table, at, compareBase)
	if i > 0 {
		m := d.table[i-1]
		about, size := d.about(m)
		if behind := at - (m.base + size); behind < guardBytes {
			return fmt.Sprintf(": %s %d bytes behind the %d bytes of %s", kind, behind, size, about)
		}
	}
	if i < len(d.table) {
		about, size := d.about(d.table[i])
		if before := d.table[i].base - at; before <= guardBytes {
			return fmt.Sprintf(": %s %d bytes before the %d bytes of %s", kind, before, size, about)
		}
	}
	return ""
}

// about says what a mapping is, as its owner knows it if the race finder does, and of how many bytes.
func (d *device) about(m *mapping) (text string, size uint64) {
	if d.race != nil {
		if text, size := d.race.About(m.base); size > 0 {
			return text, size
		}
	}
	return m.about, m.asked
}

// line returns "; at " and the line of a launch's code that failed, or "".
func (k *kernel) line(l *C.launch) string {
	m := k.mod
	for _, code := range []C.uint64_t{l.code, l.back} {
		if at := uint64(code) - m.base; code != 0 && m.object.executes(at) {
			image := make([]byte, m.size)
			if _, err := unix.Pread(m.fd, image, 0); err != nil {
				return ""
			}
			if place := race.Place(image, at); !strings.HasPrefix(place, "address ") {
				return "; at " + place
			}
		}
	}
	return ""
}

// failure returns what is wrong with a launch that has failed.
func (k *kernel) failure(l *C.launch) string {
	return C.GoString(&l.text[0]) + k.mod.dev.beside(l.access) + k.line(l)
}
