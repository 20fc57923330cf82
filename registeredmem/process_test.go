package registeredmem

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/inside"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestProcess has registries of one process import from each other when their servers have
// ended. Only registries of one group with one secret can.
func TestProcess(t *testing.T) {
	process := new(inside.Process[*Registry])
	alone := func(rank int, change func(*Options)) *Registry {
		t.Helper()
		cfg := config(t, rank)
		change(&cfg)
		return newRegistry(t, cfg)
	}
	within := func(rank int, change func(*Options)) *Registry {
		t.Helper()
		r := alone(rank, change)
		r.Internal().JoinProcess(process)
		return r
	}
	same := func(*Options) {}
	theirs := within(0, same)
	b := upload(t, theirs.Device(), 8, 1)
	m, data := register(t, theirs, b)
	testerr.Check(t, theirs.server.Close())
	mine := within(1, same)
	expectBytes(t, mustImport(t, mine, data).Buffer(), counting(8, 1))

	// Strangers have to ask at the socket, where nobody listens.
	for name, r := range map[string]*Registry{
		"another secret": within(2, func(o *Options) { o.Secret[31] ^= 1 }),
		"another group":  within(2, func(o *Options) { o.Group[15] ^= 1 }),
		"no process":     alone(2, same),
	} {
		_, ok := r.callInProcess(request{instance: theirs.instance, id: m.about.id})
		if ok {
			t.Errorf("%s: a registry of it was answered", name)
		}
	}
	_, err := within(2, func(o *Options) { o.Secret[31] ^= 1 }).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 2, peer 0", "nobody listens")

	// What is closed is not there any more.
	testerr.Check(t, b.Close())
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "closed")
	testerr.Check(t, m.Close())
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "not registered")
	testerr.Check(t, theirs.Close())
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "nobody listens")
	if _, ok := process.Find(theirs.instance); ok {
		t.Error("a registry that is closed is kept")
	}
}
