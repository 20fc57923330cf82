package cuda

// #include "idle.h"
import "C"

import (
	"time"
	"unsafe"
)

// The driver frees pinned memory once all kernels of the context have ended, and so it
// does other things, such as unpinning memory and loading modules. Meanwhile it holds up
// other threads of the process, also those that queue the copies that a kernel waits for
// (seen: 580). So pinned memory is freed when no stream has work, and what cannot be put
// off waits for that here, for a while.

// idlePatience is how long awaitIdle waits.
const idlePatience = time.Second

// work is what a context keeps of its streams.
type work struct {
	streams map[*stream]C.CUstream
	freed   []unsafe.Pointer // pinned memory that is to be freed
}

// track adds a stream to those that may have work, and forget removes it.
func (p *primary) track(s *stream) {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	if p.work.streams == nil {
		p.work.streams = map[*stream]C.CUstream{}
	}
	p.work.streams[s] = s.c.handle
}

func (p *primary) forget(s *stream) {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	delete(p.work.streams, s)
}

// freeHost frees pinned memory now or later.
func (p *primary) freeHost(host unsafe.Pointer) C.status {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	p.work.freed = append(p.work.freed, host)
	return p.freeHosts()
}

// tryFreeHosts frees what was to be freed later, if no stream has work. A failure is the
// context's, of which other calls tell.
func (p *primary) tryFreeHosts() {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	p.freeHosts()
}

// freeHosts is tryFreeHosts. The caller holds workMu.
func (p *primary) freeHosts() C.status {
	n := len(p.work.freed)
	if n == 0 {
		return 0
	}
	streams := p.handles()
	var freed C.bool
	rc := C.hosts_free(p.context, unsafe.SliceData(streams), C.size_t(len(streams)), &p.work.freed[0], C.size_t(n), &freed)
	if freed {
		p.work.freed = nil
	}
	return rc
}

// handles returns the streams. The caller holds workMu.
func (p *primary) handles() []C.CUstream {
	streams := make([]C.CUstream, 0, len(p.work.streams))
	for _, handle := range p.work.streams {
		streams = append(streams, handle)
	}
	return streams
}

// dropHosts frees what was to be freed later. There is no stream any more.
func (p *primary) dropHosts() C.status {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	return p.freeHosts()
}

// awaitIdle waits until no stream has work, for a second: kernels that wait for what this
// process is to do then end before a call that would wait for them and hold it up.
func (p *primary) awaitIdle() {
	for start := time.Now(); !p.idle() && time.Since(start) < idlePatience; {
		time.Sleep(100 * time.Microsecond)
	}
}

func (p *primary) idle() bool {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	streams := p.handles()
	var is C.bool
	rc := C.context_idle(p.context, unsafe.SliceData(streams), C.size_t(len(streams)), &is)
	return rc != 0 || bool(is)
}
