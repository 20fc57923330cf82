package registeredmem

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

func TestNewRegistryChecks(t *testing.T) {
	good := config(t, 0)
	for name, change := range map[string]func(*Options){
		"no device":        func(c *Options) { c.Device = nil },
		"negative rank":    func(c *Options) { c.Rank = -1 },
		"rank too large":   func(c *Options) { c.Rank = 1 << 31 },
		"negative timeout": func(c *Options) { c.Timeout = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewRegistry(cfg); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			testerr.Expect(t, err, mscclgo.ErrInvalid)
		}
	}
	r := newRegistry(t, Options{Device: good.Device})
	if r.Timeout() != defaultTimeout {
		t.Errorf("the default timeout is %v", r.Timeout())
	}
}

func TestRegisterChecks(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	_, err := r.Register(nil)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "rank 0", "nil")
	_, err = r.Register(upload(t, testdev.Open(t, 0), 8, 0))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "the registry of", "opened twice")
	b := upload(t, r.Device(), 8, 0)
	none := testerr.Must(b.Slice(8, 0))(t)
	_, err = r.Register(none)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "0 bytes")
	testerr.Check(t, b.Close())
	_, err = r.Register(b)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
}

func TestMemory(t *testing.T) {
	r := newRegistry(t, config(t, 5))
	b := upload(t, r.Device(), 100, 0)
	m, _ := register(t, r, b)
	if m.Rank() != 5 || m.ID() != 0 || m.Size() != 100 || !m.Local() || m.Transports() != CudaIPC || m.Buffer() != b || m.Registry() != r {
		t.Errorf("%v: local %v, transports %v", m, m.Local(), m.Transports())
	}
	for range 2 {
		testerr.Check(t, m.Close())
	}
	if m.Buffer() != nil {
		t.Error("a closed memory has a buffer")
	}
	_, err := m.MarshalBinary()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed", "rank 5")
	if again, _ := register(t, r, b); again.ID() != 1 {
		t.Errorf("the second memory has number %d", again.ID())
	}
}

func TestClose(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	b := upload(t, r.Device(), 8, 0)
	m, data := register(t, r, b)
	own := mustImport(t, r, data)
	for range 2 {
		testerr.Check(t, r.Close())
	}
	if m.Buffer() != nil || own.Buffer() != nil {
		t.Error("memories outlive their registry")
	}
	_, err := r.Register(b)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
	_, err = r.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
}

func TestAllocationNumbers(t *testing.T) {
	d := testdev.Open(t, 0)
	var a allocations
	b := upload(t, d, 100, 0)
	part := testerr.Must(b.Slice(8, 8))(t)
	whole, slice := a.join(b), a.join(part)
	if whole != slice {
		t.Error("a slice counts as another allocation")
	}
	if other := a.join(upload(t, d, 100, 0)); other == whole || other.number == whole.number {
		t.Error("another buffer counts as the same allocation")
	}
	a.leave(slice)
	if a.join(part) != whole {
		t.Error("an allocation in use got another number")
	}
	a.leave(whole)
	a.leave(whole)
	if again := a.join(b); again.number == whole.number {
		t.Error("a number was used twice")
	}
	// Memory at the address of closed memory that is still registered.
	testerr.Check(t, b.Close())
	seen := map[uint64]bool{}
	for range 4 {
		b := testerr.Must(d.Alloc(100))(t)
		number := a.join(b).number
		if seen[number] {
			t.Error("memory at the same address has the same number")
		}
		seen[number] = true
		testerr.Check(t, b.Close())
	}
}

func TestTransportsString(t *testing.T) {
	for set, want := range map[Transports]string{0: "none", CudaIPC: "CudaIPC", InfiniBand | Ethernet: "InfiniBand+Ethernet"} {
		if set.String() != want {
			t.Errorf("%d is %q, want %q", uint32(set), set, want)
		}
	}
	if !allTransports.Has(CudaIPC|Ethernet) || CudaIPC.Has(CudaIPC|Ethernet) {
		t.Error("Has is wrong")
	}
}

func TestPinnedMemoryIsForWritesOnly(t *testing.T) {
	r, other := newRegistry(t, config(t, 0)), newRegistry(t, config(t, 1))
	b, err := r.Device().AllocHost(64)
	testerr.Check(t, err)
	defer b.Close()
	m, data := register(t, r, b)
	if m.Transports() != 0 || m.Buffer() != b {
		t.Errorf("pinned memory offers %v", m.Transports())
	}
	_, err = other.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "none", "peer 0")
}
