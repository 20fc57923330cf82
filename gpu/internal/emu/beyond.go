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

// guarded returns the bytes of address space of a mapping.
func guarded(size uint64) uintptr {
	page := uint64(os.Getpagesize())
	return uintptr((size+page-1)/page*page + 2*guardBytes)
}

// mapGuarded maps a descriptor, or host memory if it is -1.
func mapGuarded(size uint64, fd int) ([]byte, error) {
	room, err := unix.MmapPtr(-1, 0, nil, guarded(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	flags := unix.MAP_SHARED
	if fd < 0 {
		flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	}
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(room, guardBytes), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(room, guarded(size))
		return nil, err
	}
	return unsafe.Slice((*byte)(at), size), nil
}

// beside says which memory an access that faulted is beside, or "".
func (d *device) beside(access C.fault_access) string {
	if access.at == 0 {
		return ""
	}
	kind, at := [...]string{"access", "read", "write"}[access.kind], uint64(access.at)
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := slices.BinarySearchFunc(d.table, at, compareBase)
	if i > 0 {
		m := d.table[i-1]
		about, size := d.about(m)
		if behind := at - (m.base + size); behind < guardBytes {
			return fmt.Sprintf(": a %s %d bytes behind the %d bytes of %s", kind, behind, size, about)
		}
	}
	if i < len(d.table) {
		about, size := d.about(d.table[i])
		if before := d.table[i].base - at; before <= guardBytes {
			return fmt.Sprintf(": a %s %d bytes before the %d bytes of %s", kind, before, size, about)
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

// failure returns what is wrong with a launch that has failed, and tells the host of it if a thread
// has begun to.
func (k *kernel) failure(l *C.launch) string {
	where := k.mod.dev.beside(l.access) + k.line(l)
	if t := &l.telling; t.told != nil {
		text := unsafe.Slice((*byte)(unsafe.Pointer(t.text)), t.room)
		n := slices.Index(text, 0)
		text[n+copy(text[n:len(text)-1], where)] = 0
		atomic.StoreUint32((*uint32)(unsafe.Pointer(t.told)), uint32(t.known))
	}
	return C.GoString(&l.text[0]) + where
}
