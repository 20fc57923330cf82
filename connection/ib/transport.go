package ib

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// Transport is one rank's devices and the memories that are registered with them.
type Transport struct {
	reg       *registeredmem.Registry
	o         Options
	nics      []*nic
	bandwidth float64 // of them, in GB/s; 0: unknown, or the user named them
	anchor    *region // of memory of the device, for the first of them
	shift     uint64  // of addresses to places that peers are told

	host    func(*gpu.Buffer) []byte // the memory of a buffer that the host can access, or nil
	changer changer
	ctx     context.Context // ends when Close begins
	cancel  context.CancelFunc

	closeOnce sync.Once
	closeErr  error

	mu       sync.RWMutex
	closed   bool
	memories map[uint32]*registration
	regions  map[place]*region   // of the memories
	live     map[closer]struct{} // endpoints and connections

	changing sync.WaitGroup // calls under way that use the devices and that live does not tell of
}

type closer interface{ Close() error }

// New opens the devices that the options choose and attaches the transport to the
// registry, in which nothing may be registered yet. The caller closes it after the
// registry.
//
// Errors: ErrInvalid for bad options, such as a device, port or GID that does not
// exist; ErrUnsupported if there is no libibverbs, no device or no active port, or the
// devices cannot access the GPU's memory, or it does not keep the order of their writes; ErrSystem when a device cannot be opened, and
// with the limit when there is too little locked memory.
func New(reg *registeredmem.Registry, o Options) (_ *Transport, err error) {
	if reg == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "ib: open", "the registry is nil")
	}
	defer func() { err = wrap("ib: open", err, reg.Rank(), mscclgo.NoRank) }()
	if o, err = o.complete(reg.Timeout()); err != nil {
		return nil, err
	}
	var t *Transport
	var carry map[string]float64
	err = openFirst(func(without []string) (names []string, err error) {
		names, carry, err = chooseDevices(o, reg.Device(), without)
		return names, err
	}, func(names []string) (err error) {
		if t, err = newTransport(reg, o, names); err != nil && o.Device == "" {
			o.Logger.Info("an RDMA device cannot be used", "rank", reg.Rank(), "device", names[0], "error", err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	t.bandwidth = together(t.nics, carry)
	return t, nil
}

// newTransport returns a transport on the devices with these names.
func newTransport(reg *registeredmem.Registry, o Options, names []string) (*Transport, error) {
	t := &Transport{reg: reg, o: o, host: (*gpu.Buffer).HostBytes, memories: map[uint32]*registration{}, regions: map[place]*region{}, live: map[closer]struct{}{}}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.shift = rand.Uint64() >> 1
	if err := t.openNICs(names); err != nil {
		return nil, err
	}
	if t.o.QueuePairs == 0 {
		t.o.QueuePairs = len(t.nics)
	}
	if err := reg.Attach(registrar{t}); err != nil {
		return nil, errors.Join(err, t.closeNICs())
	}
	for _, n := range t.nics {
		n.watched.Go(func() { t.watch(n) })
	}
	return t, nil
}

// Close closes all endpoints and connections without waiting for what they have
// queued, unregisters what is registered and closes the devices. It may be called
// again, also meanwhile: every call returns once that is done, with the same error.
func (t *Transport) Close() error {
	t.closeOnce.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Transport) close() error {
	t.cancel() // before the lock: its holder may wait for the device
	t.mu.Lock()
	live := t.live
	t.closed, t.live = true, nil
	t.mu.Unlock()
	t.changing.Wait()
	var errs []error
	for c := range live {
		errs = append(errs, c.Close()) // waits for another that closes it
	}
	t.mu.Lock()
	for id, r := range t.memories {
		delete(t.memories, id)
		if t.drop(r.region) {
			errs = append(errs, r.close())
		}
	}
	t.mu.Unlock()
	errs = append(errs, t.closeNICs(), t.changer.close())
	return wrap("ib: close", errors.Join(errs...), t.reg.Rank(), mscclgo.NoRank)
}

func (t *Transport) closeNICs() error {
	errs := []error{t.closeAnchor()}
	for i := len(t.nics) - 1; i >= 0; i-- {
		errs = append(errs, t.nics[i].close())
	}
	return errors.Join(errs...)
}

// keep adds c to what Close closes.
func (t *Transport) keep(op string, c closer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return mscclgo.Errorf(mscclgo.ErrInvalid, op, "the transport is closed").At(t.reg.Rank(), mscclgo.NoRank)
	}
	t.live[c] = struct{}{}
	return nil
}

// forget takes c from what Close closes: it uses the devices no more, or a call that Close waits for
// has it.
func (t *Transport) forget(c closer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, c)
}

// wrap returns err with the operation and the ranks. It keeps the kind. A nil err
// stays nil.
func wrap(op string, err error, rank, peer int) error {
	if err == nil {
		return nil
	}
	return mscclgo.Errorf(mscclgo.KindOf(err), op, "%w", err).At(rank, peer)
}
