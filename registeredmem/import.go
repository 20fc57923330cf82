package registeredmem

import (
	"context"
	"errors"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
)

// Import gives a peer's memory of the bytes that the peer's
// [Memory.MarshalBinary] gave, until the memory or the registry is closed: mapped
// for this rank's device, or without a Buffer where only carriers reach it. Each of a peer's allocations is mapped once,
// however many memories in it are imported. A rank may import its own bytes
// and gets the same buffer. The peer must keep the buffer while this rank uses
// it if both are in one process.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of
// another version or group; ErrUnsupported, saying why, where no transport
// reaches the memory from here; ErrRemote when the peer has unregistered it or
// is gone; ErrTimeout after ctx or [Options].Timeout, whichever is first;
// ErrAborted when ctx or the registry ends.
func (r *Registry) Import(ctx context.Context, data []byte) (*Memory, error) {
	const op = "registeredmem: import"
	d, err := decode(data)
	if err != nil {
		return nil, r.fault(op, "these are no good bytes of a memory: %w", err)
	}
	if d.group != r.options.Group {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory is of group %x, this rank of group %x", d.group, r.options.Group).At(r.options.Rank, int(d.rank))
	}
	if !r.begin() {
		return nil, r.fault(op, "the registry is closed")
	}
	defer r.imports.Done()
	m := &Memory{reg: r, about: d}
	if d.instance == r.instance {
		err = r.reachOwn(m)
	} else {
		err = r.reach(ctx, m)
	}
	if err != nil {
		return nil, wrap(err, fmt.Sprintf("registeredmem: import %v", m), r.options.Rank, m.Rank())
	}
	r.mu.Lock()
	r.imported[m] = struct{}{}
	r.mu.Unlock()
	return m, nil
}

// reachOwn gives m, of this registry, its buffer.
func (r *Registry) reachOwn(m *Memory) error {
	const op = "find it in this registry"
	own := r.Find(m.about.id)
	if own == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it is not registered, or not any more")
	}
	if own.offered() != m.about {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it is %v there", own)
	}
	m.about = own.about
	m.buf.Store(own.Buffer())
	return nil
}

// reach maps m, of a peer's registry, if that is possible, or else sees to it that
// a carrier reaches it.
func (r *Registry) reach(ctx context.Context, m *Memory) error {
	d := &m.about
	r.mu.Lock()
	carried := d.transports & r.carried()
	r.mu.Unlock()
	err := r.mappable(d)
	if err == nil {
		d.transports = CudaIPC | carried
		return r.mapIn(ctx, m)
	}
	if carried == 0 {
		return err
	}
	d.transports = carried
	return nil
}

// mapIn asks the peer for m and maps it.
func (r *Registry) mapIn(ctx context.Context, m *Memory) error {
	d := &m.about
	ctx, cancel := context.WithTimeout(ctx, r.options.Timeout)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	q := request{instance: d.instance, id: d.id}
	return fdpass.Call(ctx, r.key(), d.socket, q.encode(), func(a fdpass.Answer) error { return r.take(m, a) })
}

// mappable says why this rank's device cannot map the memory, if so.
func (r *Registry) mappable(d *description) error {
	const op = "map it"
	switch {
	case !d.transports.Has(CudaIPC):
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it can be reached by %v, and this rank can only map (CudaIPC)", d.transports)
	case r.options.Unmapped:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "this rank maps no memory (Options.Unmapped), and no carrier of its reaches %v", d.transports)
	case d.host != r.host:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it is on host %q, this rank on host %q", d.host, r.host)
	case !r.options.Device.CanAccess(d.device):
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%v has no access to the memory of device %x: %s", r.options.Device, d.device, absence(d.device))
	}
	return nil
}

// absence says why a device may be out of reach.
func absence(device [16]byte) string {
	all, err := gpu.List()
	if err != nil {
		return err.Error()
	}
	for _, info := range all {
		if info.UUID == device {
			return fmt.Sprintf("that is %s, and there is no peer access between the two", info.Name)
		}
	}
	return "this process does not see that device; CUDA_VISIBLE_DEVICES may hide it"
}

// take gives m what the peer's server answered.
func (r *Registry) take(m *Memory, got fdpass.Answer) error {
	const op = "take the peer's answer"
	a, err := decodeAnswer(got.Body)
	if err != nil {
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "%w", err)
	}
	switch a.means {
	case refused:
		return mscclgo.Errorf(a.kind, "ask the peer", "%s", a.reason)
	case byPointer:
		return r.takePointer(m, got.Value)
	}
	if a.size != m.about.size {
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "the memory has %d bytes there", a.size)
	}
	if (got.File != nil) != (a.means == byDescriptor) {
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "a descriptor is missing or too many")
	}
	key := mappingKey{instance: m.about.instance, allocation: a.allocation}
	mapped, err := r.mappings.acquire(key, func() (*gpu.Buffer, error) {
		if a.means == byDescriptor {
			return r.options.Device.Import(got.File, a.capacity)
		}
		return r.options.Device.OpenIPC(a.handle, a.capacity)
	})
	if err != nil {
		return err
	}
	buf, err := mapped.whole.Slice(a.offset, a.size)
	if err != nil {
		return errors.Join(err, r.mappings.release(mapped))
	}
	m.mapping = mapped
	m.buf.Store(buf)
	return nil
}

// takePointer gives m the buffer of a rank of this process.
func (r *Registry) takePointer(m *Memory, value any) error {
	theirs, ok := value.(*gpu.Buffer)
	if !ok || theirs.Size() != m.about.size {
		return mscclgo.Errorf(mscclgo.ErrRemote, "take the peer's answer", "it is not the buffer that was asked for")
	}
	buf, err := r.options.Device.Access(theirs)
	if err != nil {
		return err
	}
	m.buf.Store(buf)
	return nil
}
