package cuda

// #include "memory.h"
// #include "stream.h"
import "C"

import (
	"crypto/sha256"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// primary is the primary context of a GPU, which all devices of this process on the GPU
// share, and the CUDA runtime too, so that pointers are valid for all of them. Every
// object made in it holds it: the driver destroys it, with all that is left in it, when
// the last device and the last object are closed.
type primary struct {
	ordinal *ordinal
	context *C.cuda_context
	holders int // guarded by ordinal.mu
	devices int // of the holders; guarded by ordinal.mu

	workMu sync.Mutex
	work   work // guarded by workMu

	mu     sync.Mutex
	copies C.cuda_stream      // for CopyToHost and CopyFromHost, made when first used
	opened map[ipcKey]*opened // mappings of OpenIPC
	hosts  []*hostRange       // memory of the host that WrapHost pins, by address

	stamps, atomics builtin

	imagesMu sync.Mutex
	images   map[[sha256.Size]byte]*image // images that have users
}

func (o *ordinal) open() (backend.Device, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == nil {
		if rc := C.context_retain(o.context); rc != 0 {
			return nil, o.driver.failure(rc, "gpu: open "+o.name())
		}
		o.current = &primary{ordinal: o, context: o.context, opened: map[ipcKey]*opened{}, images: map[[sha256.Size]byte]*image{}, stamps: newStamper(), atomics: newAtomics()}
	}
	o.current.holders++
	o.current.devices++
	return &device{held{primary: o.current}}, nil
}

// hold adds a holder to the context.
func (p *primary) hold() error {
	p.ordinal.mu.Lock()
	defer p.ordinal.mu.Unlock()
	if p.holders == 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: use "+p.ordinal.name(), "the device is closed")
	}
	p.holders++
	return nil
}

// shared reports whether several devices are open in the context.
func (p *primary) shared() bool {
	p.ordinal.mu.Lock()
	defer p.ordinal.mu.Unlock()
	return p.devices > 1
}

// drop removes a holder. The last one releases the context.
func (p *primary) drop() error {
	p.ordinal.mu.Lock()
	defer p.ordinal.mu.Unlock()
	if p.holders--; p.holders > 0 {
		return nil
	}
	p.ordinal.current = nil
	first := p.cleanUpAll()
	if p.copies.handle != nil {
		if rc := C.stream_destroy(&p.copies); first == 0 {
			first = rc
		}
	}
	for _, kernels := range []*builtin{&p.stamps, &p.atomics} {
		if rc := kernels.drop(p); first == 0 {
			first = rc
		}
	}
	if rc := C.context_release(p.context); first == 0 {
		first = rc
	}
	return p.result(first, "release the context")
}

// needCopies creates the stream of CopyToHost and CopyFromHost if there is none.
func (p *primary) needCopies() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.copies.handle != nil {
		return nil
	}
	return p.result(C.stream_create(&p.copies, p.context), "create the stream of synchronous copies")
}

func (p *primary) memoryInfo() (free, total uint64, err error) {
	var f, t C.size_t
	if rc := C.memory_info(p.context, &f, &t); rc != 0 {
		return 0, 0, p.ordinal.driver.failure(rc, p.op("get the free memory"))
	}
	return uint64(f), uint64(t), nil
}

// held is embedded in every object that holds a primary context.
type held struct {
	*primary
	once sync.Once
}

// end calls destroy and drops the context, on the first call only.
func (h *held) end(destroy func() error) (err error) {
	h.once.Do(func() {
		err = destroy()
		if dropErr := h.drop(); err == nil {
			err = dropErr
		}
	})
	return err
}
