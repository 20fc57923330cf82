package cuda

import (
	"errors"
	"testing"

	"github.com/mscclgo/mscclgo/internal/test/testcmp"
)

// TestSharedModules loads code that another user has loaded, and gets the same module unless
// it has variables. The fake driver makes a new one each time.
func TestSharedModules(t *testing.T) {
	d := must(newDriver(buildFake(t, "-DOVERLAP")).Open(0))(t)
	closeAtEnd(t, d.Close)
	load := func(image []byte) *module {
		t.Helper()
		return must(d.LoadModule(image))(t).(*module)
	}
	code := cubinOf(190, ".text.k", 100)
	a, b, other := load(code), load(code), load(cubinOf(190, ".text.k", 200))
	if a.handle != b.handle || a.handle == other.handle {
		t.Errorf("modules of the same code are %p and %p, and of other code %p", a.handle, b.handle, other.handle)
	}
	check(t, a.Close())
	check(t, a.Close())
	c := load(code)
	if c.handle != b.handle {
		t.Error("the module was loaded again while it had a user")
	}
	check(t, errors.Join(b.Close(), c.Close(), other.Close()))
	again := load(code)
	if again.handle == b.handle {
		t.Error("a module without users was kept")
	}
	check(t, again.Close())
	for _, name := range []string{".nv.global", ".nv.global.init", ".nv.constant3"} {
		stateful := cubinOf(190, name, 100)
		a, b := load(stateful), load(stateful)
		if a.handle == b.handle {
			t.Errorf("a module with a section %s has two users", name)
		}
		check(t, errors.Join(a.Close(), b.Close()))
	}
	testcmp.Equal(t, "the number of modules that are left", len(a.images), 0)
}

// TestSharedLimit: of users of one kernel none takes the shared memory that another needs.
func TestSharedLimit(t *testing.T) {
	i := &image{dynamic: map[string]int{}}
	var set []int
	refused := errors.New("too much")
	now := func() (int, error) { return 48, nil }
	for _, bytes := range []int{20, 50, 20, 70, 70, 900} {
		err := i.allow("k", bytes, now, func() error {
			if bytes == 900 {
				return refused
			}
			set = append(set, bytes)
			return nil
		})
		if (bytes == 900) != (err == refused) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	check(t, i.allow("other", 60, now, func() error { set = append(set, 60); return nil }))
	testcmp.Equal(t, "the limits that were set", set, []int{50, 70, 60})
}
