package communicator

import (
	"context"
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// TestSlowPeerPool has peers take their time when their pools are imported: nobody else waits, of two that
// import one pool the second gets the first's, and who imports while the pool is closed keeps nothing.
func TestSlowPeerPool(t *testing.T) {
	device := testdev.Open(t, 0)
	registry := testerr.Must(registeredmem.NewRegistry(registeredmem.Options{Group: [16]byte{1}, Secret: [32]byte{2}, Device: device}))(t)
	t.Cleanup(func() { registry.Close() })
	buffer := testerr.Must(device.Alloc(4096))(t)
	own := testerr.Must(registry.Register(buffer))(t)
	description := testerr.Must(own.MarshalBinary())(t)

	begun, goOn := make(chan bool), make(chan bool)
	loaded := make(chan *registeredmem.Memory, 3)
	comm := &Communicator{boot: sizedBootstrap{size: 3}}
	p := &pipePool{c: comm, load: func(ctx context.Context, description []byte) (*registeredmem.Memory, error) {
		begun <- true
		<-goOn
		m, err := registry.Import(ctx, description)
		loaded <- m
		return m, err
	}}
	comm.pipes = p
	type result struct {
		m   *registeredmem.Memory
		err error
	}
	got := make(chan result, 3)
	ask := func() {
		m, err := p.peer(t.Context(), "make pipes", 1, description)
		got <- result{m, err}
	}
	go ask()
	go ask()
	<-begun
	<-begun
	if _, err := comm.PipePool(); err != nil { // it would wait for ever for the lock
		t.Error(err)
	}
	goOn <- true
	goOn <- true
	one, other := <-got, <-got
	if one.err != nil || other.err != nil || one.m != other.m || one.m == nil || one.m.Closed() {
		t.Fatalf("two imports of one pool got %v and %v", one, other)
	}
	if a, b := <-loaded, <-loaded; a.Closed() == b.Closed() {
		t.Errorf("what was imported twice is closed: %v and %v", a.Closed(), b.Closed())
	}
	ask() // it is known
	if again := <-got; again != one {
		t.Errorf("a third import got %v, want %v", again, one)
	}

	p.peers = nil
	go ask()
	<-begun
	testerr.Report(t, p.close())
	goOn <- true
	if late := <-got; late.m != nil || !errors.Is(late.err, mscclgo.ErrInvalid) {
		t.Errorf("an import while the pool is closed got %v", late)
	}
	if m := <-loaded; !m.Closed() {
		t.Error("what a closed pool imported is still mapped")
	}
	testerr.Report(t, one.m.Close())
}
