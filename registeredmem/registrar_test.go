package registeredmem

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// fakeRegistrar keeps a list of what it carries.
type fakeRegistrar struct {
	transport Transports
	key       string
	refuse    error
	offered   map[uint32]bool
}

func (c *fakeRegistrar) Transport() Transports { return c.transport }

func (c *fakeRegistrar) Offer(m *Memory) ([]byte, error) {
	if c.refuse != nil {
		return nil, c.refuse
	}
	c.offered[m.ID()] = true
	return fmt.Appendf(nil, "%s%d", c.key, m.ID()), nil
}

func (c *fakeRegistrar) Withdraw(m *Memory) error {
	delete(c.offered, m.ID())
	return nil
}

func attach(t *testing.T, r *Registry, c *fakeRegistrar) *fakeRegistrar {
	t.Helper()
	c.offered = map[uint32]bool{}
	testerr.Check(t, r.Attach(c))
	return c
}

// unmapped returns the registry of a rank that maps nothing.
func unmapped(t *testing.T, rank int) *Registry {
	cfg := config(t, rank)
	cfg.Unmapped = true
	return newRegistry(t, cfg)
}

func TestRegistrar(t *testing.T) {
	owner, peer := unmapped(t, 1), unmapped(t, 0)
	ethernet := attach(t, owner, &fakeRegistrar{transport: Ethernet, key: "e"})
	attach(t, owner, &fakeRegistrar{transport: InfiniBand, key: "i"})
	attach(t, peer, &fakeRegistrar{transport: Ethernet})

	mine := testerr.Must(owner.Register(upload(t, owner.Device(), 64, 1)))(t)
	if got := mine.Transports(); got != CudaIPC|InfiniBand|Ethernet {
		t.Errorf("it offers %v", got)
	}
	data := testerr.Must(mine.MarshalBinary())(t)
	theirs := testerr.Must(peer.Import(t.Context(), data))(t)
	if theirs.Buffer() != nil || theirs.Transports() != Ethernet {
		t.Errorf("imported by %v with buffer %v", theirs.Transports(), theirs.Buffer())
	}
	if e, i := string(theirs.Key(Ethernet)), string(theirs.Key(InfiniBand)); e != "e0" || i != "i0" {
		t.Errorf("its keys are %q and %q", e, i)
	}
	if key := theirs.Key(Ethernet | InfiniBand); key != nil {
		t.Errorf("two transports have the key %q", key)
	}
	own := testerr.Must(owner.Import(t.Context(), data))(t)
	if own.Buffer() != mine.Buffer() || !own.Transports().Has(CudaIPC) {
		t.Errorf("the rank's own memory is reached by %v", own.Transports())
	}

	if !ethernet.offered[mine.ID()] {
		t.Error("it is not offered before it is closed")
	}
	testerr.Check(t, mine.Close())
	if len(ethernet.offered) != 0 {
		t.Error("it is offered after it was closed")
	}
}

func TestMappedAndRegistrar(t *testing.T) {
	owner, peer := newRegistry(t, config(t, 1)), newRegistry(t, config(t, 0))
	attach(t, owner, &fakeRegistrar{transport: Ethernet})
	attach(t, peer, &fakeRegistrar{transport: Ethernet})
	mine := testerr.Must(owner.Register(upload(t, owner.Device(), 64, 1)))(t)
	data := testerr.Must(mine.MarshalBinary())(t)
	theirs := testerr.Must(peer.Import(t.Context(), data))(t)
	if theirs.Buffer() == nil || theirs.Transports() != CudaIPC|Ethernet {
		t.Errorf("imported by %v with buffer %v", theirs.Transports(), theirs.Buffer())
	}
}

func TestNoRegistrar(t *testing.T) {
	owner, peer := unmapped(t, 1), newRegistry(t, config(t, 0))
	attach(t, owner, &fakeRegistrar{transport: InfiniBand})
	mine, err := owner.Register(upload(t, owner.Device(), 64, 1))
	testerr.Check(t, err)
	data := testerr.Must(mine.MarshalBinary())(t)
	_, err = peer.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrUnsupported, "rank 0, peer 1", "InfiniBand")
}

func TestAttachErrors(t *testing.T) {
	r := newRegistry(t, config(t, 0))
	for _, bad := range []Transports{0, CudaIPC, InfiniBand | Ethernet, 1 << 7} {
		testerr.Expect(t, r.Attach(&fakeRegistrar{transport: bad}), mscclgo.ErrInvalid, "rank 0")
	}
	first := attach(t, r, &fakeRegistrar{transport: Ethernet})
	testerr.Expect(t, r.Attach(&fakeRegistrar{transport: Ethernet}), mscclgo.ErrInvalid, "Ethernet")

	second := attach(t, r, &fakeRegistrar{transport: InfiniBand})
	second.refuse = mscclgo.Errorf(mscclgo.ErrSystem, "pin it", "no locked memory is left")
	_, err := r.Register(upload(t, r.Device(), 64, 1))
	testerr.Expect(t, err, mscclgo.ErrSystem, "rank 0", "no locked memory")
	if len(first.offered) != 0 {
		t.Error("the first registrar carries what the second refused")
	}
	second.refuse, second.key = nil, string(make([]byte, maxKey))
	_, err = r.Register(upload(t, r.Device(), 64, 1))
	testerr.Expect(t, err, mscclgo.ErrInvalid, "bytes")
	if len(first.offered)+len(second.offered) != 0 {
		t.Error("memory is offered whose key is too long")
	}
	testerr.Expect(t, r.Attach(&fakeRegistrar{transport: InfiniBand}), mscclgo.ErrInvalid, "InfiniBand")
	testerr.Expect(t, r.Attach(nil), mscclgo.ErrInvalid, "rank 0", "nil")
	testerr.Report(t, errors.Join(r.Close(), r.Close()))
	closed := newRegistry(t, config(t, 0))
	testerr.Report(t, closed.Close())
	testerr.Expect(t, closed.Attach(&fakeRegistrar{transport: Ethernet}), mscclgo.ErrInvalid, "closed")
}

// slowRegistrar takes long to offer a memory, as pinning gigabytes does.
type slowRegistrar struct {
	fakeRegistrar
	begun, goOn chan struct{}
}

func (c *slowRegistrar) Offer(m *Memory) ([]byte, error) {
	if m.Size() > 64 {
		close(c.begun)
		<-c.goOn
	}
	return c.fakeRegistrar.Offer(m)
}

// TestSlowRegistration registers, finds, imports and closes memories while another is
// being registered, and closes the registry meanwhile: what comes too late is withdrawn.
func TestSlowRegistration(t *testing.T) {
	for _, closes := range []bool{false, true} {
		r := unmapped(t, 1)
		slow := &slowRegistrar{fakeRegistrar{transport: Ethernet, offered: map[uint32]bool{}}, make(chan struct{}), make(chan struct{})}
		testerr.Check(t, r.Attach(slow))
		large, few := upload(t, r.Device(), 4096, 1), upload(t, r.Device(), 64, 1)
		type result struct {
			m   *Memory
			err error
		}
		registered := make(chan result, 1)
		go func() {
			m, err := r.Register(large)
			registered <- result{m, err}
		}()
		<-slow.begun
		quick := make(chan error, 1)
		go func() {
			small, err := r.Register(few)
			if err == nil {
				r.Find(0)
				var data []byte
				if data, err = small.MarshalBinary(); err == nil {
					_, err = r.Import(t.Context(), data)
				}
				err = errors.Join(err, small.Close())
			}
			if closes {
				err = errors.Join(err, r.Close())
			}
			quick <- err
		}()
		select {
		case err := <-quick:
			testerr.Report(t, err)
		case <-time.After(20 * time.Second):
			t.Error("others wait for the registration")
		}
		close(slow.goOn)
		got := <-registered
		if closes {
			testerr.Expect(t, got.err, mscclgo.ErrInvalid, "closed meanwhile", "rank 1")
			if len(slow.offered) != 0 {
				t.Errorf("%v are offered by a closed registry", slow.offered)
			}
			continue
		}
		if got.err != nil || r.Find(got.m.ID()) != got.m {
			t.Errorf("Register returned %v, %v", got.m, got.err)
		}
	}
}
