package cuda

// #include "idle.h"
import "C"

import (
	"maps"
	"slices"
	"time"
	"unsafe"
)

// The driver frees pinned memory once all kernels of the context have ended, and so it
// does other things, such as unpinning memory and loading modules. Meanwhile it holds up
// other threads of the process, also threads that queue the copies for which a kernel waits
// (seen: 580). So pinned memory is freed when no stream has work, and what cannot be put
// off waits for that here, for a while.

// idlePatience is how long awaitIdle waits.
const idlePatience = time.Second

// work is what a context keeps of its streams, but for streams of other code: these may begin
// to capture at any time, and a query would make the capture invalid. A stream of ours joins
// a capture with workMu held.
type work struct {
	streams map[*stream]C.CUstream
	ending  []C.CUstream     // closed, with work
	freed   []unsafe.Pointer // pinned memory that is to be freed
}

// track adds a stream to the streams that may have work.
func (p *primary) track(s *stream) {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	if p.work.streams == nil {
		p.work.streams = map[*stream]C.CUstream{}
	}
	p.work.streams[s] = s.c.handle
}

// finish destroys a stream that is closed, when its work has ended.
func (p *primary) finish(s *stream) C.status {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	delete(p.work.streams, s)
	destroyed, rc := p.destroyIdle(s.c.handle)
	if !destroyed {
		p.work.ending = append(p.work.ending, s.c.handle)
	}
	p.cleanUp()
	return rc
}

func (p *primary) destroyIdle(stream C.CUstream) (bool, C.status) {
	var destroyed C.bool
	rc := C.stream_destroy_idle(p.context, stream, &destroyed)
	return bool(destroyed) || rc != 0, rc
}

// freeHost frees pinned memory now or later.
func (p *primary) freeHost(host unsafe.Pointer) C.status {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	p.work.freed = append(p.work.freed, host)
	return p.cleanUp()
}

// tryCleanUp is cleanUp. A failure is the context's, which other calls report.
func (p *primary) tryCleanUp() {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	p.cleanUp()
}

// cleanUp destroys closed streams whose work has ended and, if no stream has any, frees
// what was to be freed. The caller holds workMu.
func (p *primary) cleanUp() C.status {
	p.work.ending = slices.DeleteFunc(p.work.ending, func(stream C.CUstream) bool {
		destroyed, _ := p.destroyIdle(stream)
		return destroyed
	})
	n := len(p.work.freed)
	if n == 0 {
		return 0
	}
	streams := p.handles()
	var freed C.bool
	rc := C.hosts_free_idle(p.context, unsafe.SliceData(streams), C.size_t(len(streams)), &p.work.freed[0], C.size_t(n), &freed)
	if freed {
		p.work.freed = nil
	}
	return rc
}

// cleanUpAll is cleanUp for the last holder, whatever still runs.
func (p *primary) cleanUpAll() (first C.status) {
	p.workMu.Lock()
	defer p.workMu.Unlock()
	for _, handle := range p.work.ending {
		s := C.cuda_stream{context: p.context, handle: handle}
		if rc := C.stream_destroy(&s); first == 0 {
			first = rc
		}
	}
	if n := len(p.work.freed); n > 0 {
		if rc := C.hosts_free(p.context, &p.work.freed[0], C.size_t(n)); first == 0 {
			first = rc
		}
	}
	p.work = work{}
	return first
}

// handles returns the streams. The caller holds workMu.
func (p *primary) handles() []C.CUstream {
	return slices.AppendSeq(slices.Clone(p.work.ending), maps.Values(p.work.streams))
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
