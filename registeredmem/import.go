package registeredmem

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/fdpass"
)

// Import returns a peer's memory, from the bytes that the peer's
// [Memory.MarshalBinary] returned. It is mapped for this rank's device if possible;
// otherwise it has no Buffer and is reached over registrars. Each of a peer's
// allocations is mapped once, however many memories in it are imported. A rank may
// import its own bytes and gets the same buffer. Kernels may use the memory until the
// Memory is closed, even if the peer closes its buffer or ends before; but memory that
// the peer wrapped ([gpu.Device.Wrap]) is only there for as long as its owner keeps it.
//
// Errors: ErrInvalid for bytes that were cut short or altered, or are of
// another version or group; ErrUnsupported when no transport reaches the memory
// from here, with the reason; ErrRemote when the peer has unregistered it or is
// gone; ErrTimeout after the deadline of ctx or [Options].Timeout, whichever is
// first; ErrAborted when ctx is cancelled or the registry is closed.
func (r *Registry) Import(ctx context.Context, data []byte) (*Memory, error) {
	return r.Internal().ImportAt(ctx, data, nil)
}

func (r registryInside) ImportAt(ctx context.Context, data []byte, at *Memory) (*Memory, error) {
	const op = "registeredmem: import"
	d, err := decode(data)
	if err != nil {
		return nil, r.fault(op, "the bytes do not describe a memory: %w", err)
	}
	if d.group != r.options.Group {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the memory is of group %x, this rank of group %x", d.group, r.options.Group).At(r.options.Rank, int(d.rank))
	}
	if !r.begin() {
		return nil, r.fault(op, "the registry is closed")
	}
	defer r.imports.Done()
	m := &Memory{reg: r.Registry, about: d}
	if d.instance == r.instance {
		err = r.importOwn(m)
	} else {
		err = r.importPeers(ctx, m, at)
	}
	if err != nil {
		return nil, wrap(err, fmt.Sprintf("registeredmem: import %v", m), r.options.Rank, m.Rank())
	}
	r.mu.Lock()
	r.imported[m] = struct{}{}
	r.mu.Unlock()
	return m, nil
}

// importOwn sets the buffer of m, which is of this registry.
func (r *Registry) importOwn(m *Memory) error {
	const op = "find it in this registry"
	own := r.Find(m.about.id)
	if own == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "it is not registered")
	}
	if own.offered() != m.about {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the registry has %v", own)
	}
	m.about = own.about
	m.buf.Store(own.Buffer())
	return nil
}

// importPeers maps m, which is of a peer's registry, or checks that a registrar
// reaches it.
func (r *Registry) importPeers(ctx context.Context, m, at *Memory) error {
	d := &m.about
	r.mu.Lock()
	unmapped := d.transports & r.attached()
	r.mu.Unlock()
	err := r.mappable(d)
	if err == nil {
		d.transports = CudaIPC | unmapped
		return r.mapIn(ctx, m, at)
	}
	if unmapped == 0 {
		return err
	}
	d.transports = unmapped
	return nil
}

// mapIn requests m from the peer and maps it.
func (r *Registry) mapIn(ctx context.Context, m, at *Memory) error {
	d := &m.about
	q := request{instance: d.instance, id: d.id}
	if a, ok := r.callInProcess(q); ok {
		return r.take(m, at, a)
	}
	ctx, cancel := context.WithTimeout(ctx, r.options.Timeout)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	return fdpass.Call(ctx, r.key(), d.socket, q.encode(), func(a fdpass.Answer) error { return r.take(m, at, a) })
}

// mappable returns nil if this rank's device can map the memory, or an error with
// the reason.
func (r *Registry) mappable(d *description) error {
	const op = "map it"
	switch {
	case !d.transports.Has(CudaIPC):
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it can be reached over %v, this rank has only CudaIPC", d.transports)
	case r.options.Unmapped:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "Options.Unmapped keeps this rank from mapping it, and no other transport of this rank is among %v", d.transports)
	case d.host != r.options.Host:
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "it is on host %q, this rank on host %q", d.host, r.options.Host)
	case !r.options.Device.CanAccess(d.device):
		return mscclgo.Errorf(mscclgo.ErrUnsupported, op, "%v has no access to the memory of device %x: %s", r.options.Device, d.device, r.absence(d.device))
	}
	return nil
}

// absence returns a likely reason why a device has no peer access.
func (r *Registry) absence(device [16]byte) string {
	if r.options.Device.Info().PCIBusID == "" { // no driver is loaded to explain that
		return "an emulated device has access to the emulated devices of its host"
	}
	all, err := gpu.List()
	if err != nil {
		return err.Error()
	}
	for _, info := range all {
		if info.UUID == device {
			return fmt.Sprintf("that is %s, and the two have no peer access", info.Name)
		}
	}
	return "this process does not see that device; CUDA_VISIBLE_DEVICES may hide it"
}

// take completes m with what the peer's server answered.
func (r *Registry) take(m, at *Memory, got fdpass.Answer) error {
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
		return mscclgo.Errorf(mscclgo.ErrRemote, op, "it should have a descriptor and has none, or has one and should not")
	}
	key := mappingKey{instance: m.about.instance, allocation: a.allocation}
	mapped, err := r.mappings.acquire(key, func() (*gpu.Buffer, error) {
		if a.means == byDescriptor {
			if whole := r.replace(at, got.File, a.capacity); whole != nil {
				return whole, nil
			}
			return r.options.Device.Internal().Import(got.File, a.capacity)
		}
		return r.options.Device.Internal().OpenIPC(a.handle, a.capacity)
	})
	if err != nil {
		return err
	}
	buf, err := mapped.whole.Slice(a.offset, a.size)
	if err != nil {
		return errors.Join(err, r.mappings.release(mapped))
	}
	m.mapped = mapped
	m.unmap = func() error { return r.mappings.release(mapped) }
	m.buf.Store(buf)
	return nil
}

// replace maps a file where at was, and returns the whole mapping, or nil if it is to be
// mapped elsewhere.
func (r *Registry) replace(at *Memory, file *os.File, capacity uint64) *gpu.Buffer {
	if at == nil || at.mapped == nil || at.closed.Load() || at.reg == r || at.reg.options.Device != r.options.Device {
		return nil
	}
	if at.reg.waitForTransfers() != nil {
		return nil // a copy engine may still work on it
	}
	whole := at.reg.mappings.take(at.mapped, capacity)
	if whole == nil {
		return nil
	}
	if err := whole.Internal().Remap(file); err != nil {
		r.options.Logger.Info("registeredmem: a memory is mapped elsewhere", "rank", r.options.Rank, "memory", at.String(), "error", errors.Join(err, whole.Close()))
		return nil
	}
	return whole
}

// takePointer completes m with the buffer of a rank of this process.
func (r *Registry) takePointer(m *Memory, value any) error {
	theirs, ok := value.(*gpu.Buffer)
	if !ok || theirs.Size() != m.about.size {
		return mscclgo.Errorf(mscclgo.ErrRemote, "take the peer's answer", "it is not the requested buffer")
	}
	// As memory of another process would, it outlives its owner's Close: kernels of this
	// rank may still be storing to it when the owner leaves a group that has failed.
	letGo, ok := theirs.Internal().Keep()
	if !ok {
		return mscclgo.Errorf(mscclgo.ErrRemote, "take the peer's answer", "the buffer was closed meanwhile")
	}
	buf, err := r.options.Device.Access(theirs)
	if err != nil {
		return errors.Join(err, letGo())
	}
	m.unmap = letGo
	m.buf.Store(buf)
	return nil
}
