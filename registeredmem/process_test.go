package registeredmem

import (
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
)

// TestProcess has registries of one process import from each other when their servers have
// ended, and only those of one group with one secret.
func TestProcess(t *testing.T) {
	process := new(Process)
	within := func(rank int, change func(*Options)) *Registry {
		t.Helper()
		cfg := config(t, rank)
		cfg.Process = process
		change(&cfg)
		return newRegistry(t, cfg)
	}
	same := func(*Options) {}
	theirs := within(0, same)
	b := upload(t, theirs.Device(), 8, 1)
	m, data := register(t, theirs, b)
	if err := theirs.server.Close(); err != nil {
		t.Fatal(err)
	}
	mine := within(1, same)
	expectBytes(t, mustImport(t, mine, data).Buffer(), counting(8, 1))

	// Strangers have to ask at the socket, where nobody listens.
	for name, r := range map[string]*Registry{
		"another secret": within(2, func(o *Options) { o.Secret[31] ^= 1 }),
		"another group":  within(2, func(o *Options) { o.Group[15] ^= 1 }),
		"no process":     within(2, func(o *Options) { o.Process = nil }),
	} {
		_, ok := r.options.Process.call(r, request{instance: theirs.instance, id: m.about.id})
		if ok {
			t.Errorf("%s: a registry of it was answered", name)
		}
	}
	_, err := within(2, func(o *Options) { o.Secret[31] ^= 1 }).Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 2, peer 0", "nobody listens")

	// What is closed is not there any more.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "closed")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "not registered")
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = mine.Import(t.Context(), data)
	testerr.Expect(t, err, mscclgo.ErrRemote, "rank 1, peer 0", "nobody listens")
	process.mu.RLock()
	defer process.mu.RUnlock()
	if process.registries[theirs.instance] != nil {
		t.Error("a registry that is closed is kept")
	}
}
