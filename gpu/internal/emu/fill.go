package emu

// #include "memory.h"
import "C"

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// leastSparse is the number of bytes from which zeros are looked at closer: what fewer take does
// not matter.
const leastSparse = 64 << 10

// fill sets n bytes. Pages of the device's own memory that were never written stay so if they are
// filled with zeros, and take no memory. The others are written and never given back: a NIC with
// which they are registered would go on with the old pages.
func (d *device) fill(dst uint64, value byte, n uint64) C.bool {
	parts := []span{{dst, n}}
	if value == 0 && n >= leastSparse {
		parts = d.written(dst, n)
	}
	for _, p := range parts {
		if !C.memory_fill(C.uint64_t(p.at), C.int(value), C.uint64_t(p.n)) {
			return false
		}
	}
	return true
}

// span is n bytes at an address.
type span struct{ at, n uint64 }

// written returns the parts of n bytes that may be other than zeros, as their pages were written.
func (d *device) written(at, n uint64) (parts []span) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.find(at)
	if m == nil || m.fd < 0 || n > m.base+uint64(len(m.bytes))-at {
		return []span{{at, n}}
	}
	for from, end := at-m.base, at-m.base+n; from < end; {
		data, err := unix.Seek(m.fd, int64(from), unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // none are behind
		}
		var hole int64
		if err == nil {
			hole, err = unix.Seek(m.fd, data, unix.SEEK_HOLE)
		}
		if err != nil {
			return append(parts, span{m.base + from, end - from})
		}
		from = min(uint64(hole), end)
		if first := uint64(data); first < from {
			parts = append(parts, span{m.base + first, from - first})
		}
	}
	return parts
}

// zeros reports whether b is long and of zeros alone. It reads no further than the first page
// that has something else.
func zeros(b []byte) bool {
	if len(b) < leastSparse {
		return false
	}
	var page [4096]byte
	for ; len(b) > len(page); b = b[len(page):] {
		if !bytes.Equal(b[:len(page)], page[:]) {
			return false
		}
	}
	return bytes.Equal(b, page[:len(b)])
}
