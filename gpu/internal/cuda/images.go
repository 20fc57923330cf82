package cuda

// #include "module.h"
import "C"

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"strings"
	"sync"
)

// The ranks of a process that share a GPU load the same code. Later ranks take the module
// of the first: the driver would load it again only when the first rank's kernels have
// ended, and these may be waiting for the later ranks.

// image is a module for several users.
type image struct {
	sum   [sha256.Size]byte
	users int // guarded by primary.imagesMu

	once   sync.Once
	handle C.CUmodule
	err    error

	mu      sync.Mutex
	dynamic map[string]int // the dynamic shared memory that kernels are allowed
}

// stateless reports whether users of a module cannot notice each other: it is a cubin
// without variables in the device's memory.
func stateless(code []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return false
	}
	for _, s := range f.Sections {
		if strings.HasPrefix(s.Name, ".nv.global") || strings.HasPrefix(s.Name, ".nv.constant3") {
			return false
		}
	}
	return true
}

// share returns the module of an image, which the first user loads.
func (p *primary) share(code []byte, load func() (C.CUmodule, error)) (C.CUmodule, *image, error) {
	sum := sha256.Sum256(code)
	p.imagesMu.Lock()
	i := p.images[sum]
	if i == nil {
		i = &image{sum: sum, dynamic: map[string]int{}}
		p.images[sum] = i
	}
	i.users++
	p.imagesMu.Unlock()
	loads := false
	i.once.Do(func() {
		loads = true
		i.handle, i.err = load()
	})
	if i.err == nil {
		return i.handle, i, nil
	}
	p.part(i)
	if loads {
		return nil, nil, i.err
	}
	handle, err := load() // which has an error of its own
	return handle, nil, err
}

// part removes a user of an image, and reports whether it was the last.
func (p *primary) part(i *image) bool {
	p.imagesMu.Lock()
	defer p.imagesMu.Unlock()
	i.users--
	if p.images[i.sum] == i && (i.users == 0 || i.err != nil) {
		delete(p.images, i.sum)
	}
	return i.users == 0
}

// allow calls set if a kernel is allowed less dynamic shared memory, as now returns the first
// time: another user may need what it has.
func (i *image) allow(kernel string, bytes int, now func() (int, error), set func() error) error {
	if i == nil {
		return set()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, known := i.dynamic[kernel]; !known {
		limit, err := now()
		if err != nil {
			return err
		}
		i.dynamic[kernel] = limit
	}
	if bytes <= i.dynamic[kernel] {
		return nil
	}
	err := set()
	if err == nil {
		i.dynamic[kernel] = bytes
	}
	return err
}
