package cuda

// #include "memory.h"
// #include "stream.h"
import "C"

import (
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
)

// primary is a GPU's primary context, the one that all opens of the GPU in this
// process share, with the CUDA runtime too, so that a pointer means the same to
// all of them. Every object made in it holds it: the driver destroys it, with
// whatever is left in it, when the last device and the last object are closed.
type primary struct {
	ordinal *ordinal
	context *C.cuda_context
	holders int // guarded by ordinal.mu

	mu     sync.Mutex
	copies C.cuda_stream      // for CopyToHost and CopyFromHost, made when first used
	opened map[ipcKey]*opened // what OpenIPC has mapped
}

func (o *ordinal) open() (backend.Device, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.current == nil {
		if rc := C.context_retain(o.context); rc != 0 {
			return nil, o.driver.failure(rc, "gpu: open "+o.name())
		}
		o.current = &primary{ordinal: o, context: o.context, opened: map[ipcKey]*opened{}}
	}
	o.current.holders++
	return &device{held{primary: o.current}}, nil
}

// hold keeps the context alive for one more object.
func (p *primary) hold() error {
	p.ordinal.mu.Lock()
	defer p.ordinal.mu.Unlock()
	if p.holders == 0 {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "gpu: use "+p.ordinal.name(), "the device is closed")
	}
	p.holders++
	return nil
}

// drop undoes one hold.
func (p *primary) drop() error {
	p.ordinal.mu.Lock()
	defer p.ordinal.mu.Unlock()
	if p.holders--; p.holders > 0 {
		return nil
	}
	p.ordinal.current = nil
	var first C.status
	if p.copies.handle != nil {
		first = C.stream_destroy(&p.copies)
	}
	if rc := C.context_release(p.context); first == 0 {
		first = rc
	}
	if first != 0 {
		return p.fail(first, "release the context")
	}
	return nil
}

// needCopies makes the stream of CopyToHost and CopyFromHost.
func (p *primary) needCopies() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.copies.handle == nil {
		if rc := C.stream_create(&p.copies, p.context); rc != 0 {
			return p.fail(rc, "create the stream of synchronous copies")
		}
	}
	return nil
}

func (p *primary) memoryInfo() (free, total uint64, err error) {
	var f, t C.size_t
	if rc := C.memory_info(p.context, &f, &t); rc != 0 {
		return 0, 0, p.ordinal.driver.failure(rc, p.op("ask for free memory"))
	}
	return uint64(f), uint64(t), nil
}

// held is embedded in every object that holds a primary context. It runs the
// object's destructor once.
type held struct {
	*primary
	once sync.Once
}

// end runs destroy, on the first call only, and lets go of the context.
func (h *held) end(destroy func() error) (err error) {
	h.once.Do(func() {
		err = destroy()
		if dropErr := h.drop(); err == nil {
			err = dropErr
		}
	})
	return err
}
