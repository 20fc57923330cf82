package race

// #include "host.h"
import "C"

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Map gives memory a shadow. Of its size bytes, asked are used: a kernel that accesses others fails.
// fd is its descriptor, or -1 for memory of the host. Other processes and devices that map the same
// file have the same shadow.
func (f *Finder) Map(device string, base, size, asked uint64, fd int) {
	region := C.race_region{size: C.uint64_t(size), bytes: C.uint64_t(asked)}
	what := "memory"
	if fd < 0 {
		what, region.pinned = "host memory", 1
	}
	var stat unix.Stat_t
	if fd >= 0 && unix.Fstat(fd, &stat) == nil {
		region.file = [2]C.uint64_t{C.uint64_t(stat.Dev), C.uint64_t(stat.Ino)}
	}
	region.name = f.text(fmt.Sprintf("%s of %s, allocated at %s", what, f.string(f.on(device)), f.string(f.caller())))
	C.race_map(C.uint64_t(base), &region)
}

// About says which memory begins at base, and of how many bytes, as its owner told Map.
func (f *Finder) About(base uint64) (text string, size uint64) {
	var bytes C.uint64_t
	name := C.race_about(C.uint64_t(base), &bytes)
	return f.string(name), uint64(bytes)
}

// MapVariables gives the variables of a module a shadow. They are loaded from base to base+size; start
// is the address of the first in the module.
func (f *Finder) MapVariables(device string, m Module, base, size, start uint64) {
	within := base % pageSize
	region := C.race_region{size: C.uint64_t(size + within), module: m.number, start: C.uint64_t(start - within)}
	region.name = f.text(fmt.Sprintf("of %s, loaded at %s", f.string(f.on(device)), f.string(f.caller())))
	C.race_map(C.uint64_t(base-within), &region)
}

// Unmap takes the shadow away, for all if the memory is freed.
func (f *Finder) Unmap(base, size uint64, freed bool) {
	within := base % pageSize
	how := C.int(0)
	if freed {
		how = 1
	}
	C.race_unmap(C.uint64_t(base-within), C.uint64_t(size+within), how)
}

const pageSize = 4096 // of the finder's table

// wrapped are pages of the host that devices use and did not allocate. Buffers share them: their
// memory begins and ends anywhere, and the same memory is wrapped again and again.
type wrapped struct {
	mu    sync.Mutex
	pages map[uint64]*wrappedPage // by address
}

type wrappedPage struct {
	users int
	of    *wrappedRun
}

// wrappedRun are pages that got their shadow together and lose it together.
type wrappedRun struct {
	base, size uint64
	used       int // pages with users
}

func (w *wrapped) init() { w.pages = map[uint64]*wrappedPage{} }

// Wrap gives memory of the host a shadow until Unwrap, as often as it is called.
func (f *Finder) Wrap(device string, base, size uint64) {
	name := f.text(fmt.Sprintf("host memory of %s, wrapped at %s", f.string(f.on(device)), f.string(f.caller())))
	w := &f.wrapped
	w.mu.Lock()
	defer w.mu.Unlock()
	var run *wrappedRun
	end := func() {
		if run != nil {
			C.race_map(C.uint64_t(run.base), &C.race_region{size: C.uint64_t(run.size), name: name, pinned: 1})
			run = nil
		}
	}
	for page := base / pageSize * pageSize; page < base+size; page += pageSize {
		p := w.pages[page]
		switch {
		case p == nil && C.race_mapped(C.uint64_t(page)) != 0: // it is a device's
			end()
			continue
		case p == nil:
			if run == nil {
				run = &wrappedRun{base: page}
			}
			run.size += pageSize
			p = &wrappedPage{of: run}
			w.pages[page] = p
		default:
			end()
		}
		if p.users++; p.users == 1 {
			p.of.used++
		}
	}
	end()
}

// Unwrap undoes one Wrap.
func (f *Finder) Unwrap(base, size uint64) {
	w := &f.wrapped
	w.mu.Lock()
	defer w.mu.Unlock()
	for page := base / pageSize * pageSize; page < base+size; page += pageSize {
		p := w.pages[page]
		if p == nil || p.users == 0 {
			continue
		}
		if p.users--; p.users > 0 {
			continue
		}
		C.race_forget(C.uint64_t(page)) // the memory may be other things' from now on
		if p.of.used--; p.of.used > 0 {
			continue
		}
		C.race_unmap(C.uint64_t(p.of.base), C.uint64_t(p.of.size), 1)
		for at := p.of.base; at < p.of.base+p.of.size; at += pageSize {
			delete(w.pages, at)
		}
	}
}
