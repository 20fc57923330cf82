package gpu_test

import (
	"bytes"
	"testing"

	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

func TestModuleRefuses(t *testing.T) {
	d := testdev.Open(t, 0)
	good := image(t, d)
	damaged := bytes.Clone(good)
	damaged[0] ^= 1
	for what, bad := range map[string][]byte{
		"nothing": nil, "one byte": {0}, "noise": counting(4096, 1), "half an image": good[:len(good)/2], "a damaged image": damaged,
		"text": []byte("this is no device code"),
	} {
		m, err := d.LoadModule(bad)
		if err == nil {
			t.Errorf("loaded %s", what)
			closer(t, m)
			continue
		}
		invalid(t, err, "load a module", name(t))
	}
	m := load(t, d)
	for _, bad := range []string{"absent", "", "counter", "fil"} {
		_, err := m.Kernel(bad)
		invalid(t, err, bad, name(t))
	}
	_, err := m.Kernel("fill\x00")
	invalid(t, err, name(t))
	for _, bad := range []string{"absent", "", "fill"} {
		_, err := m.Symbol(bad)
		invalid(t, err, bad, name(t))
	}
}

// TestSymbol shares a variable between kernel and host. Each module has its own.
func TestSymbol(t *testing.T) {
	d := testdev.Open(t, 0)
	s, m := newStream(t, d), load(t, d)
	again, err := d.LoadModule(image(t, d))
	check(t, err)
	b, err := m.Symbol("counter")
	check(t, err)
	theirs, err := again.Symbol("counter")
	check(t, err)
	if b.Size() != 8 || b.Device() != d {
		t.Errorf("the variable has %d bytes on %v", b.Size(), b.Device())
	}
	count := kernel(t, m, "count")
	check(t, count.Launch(s, gpu.Blocks(1, 1), 2))
	synchronize(t, s)
	if got := contents[uint64](t, b, 1)[0]; got != 42 {
		t.Errorf("the variable is %d", got)
	}
	check(t, gpu.CopyIn(b, []uint64{100}))
	check(t, count.Launch(s, gpu.Blocks(1, 1), 1))
	synchronize(t, s)
	if got := contents[uint64](t, b, 1)[0]; got != 101 {
		t.Errorf("the variable is %d", got)
	}
	if got := contents[uint64](t, theirs, 1)[0]; got != 40 {
		t.Errorf("the other module's variable is %d", got)
	}
	check(t, b.Close()) // it is the module's
	contents[uint64](t, b, 1)

	theirCount := kernel(t, again, "count")
	check(t, again.Close())
	check(t, again.Close())
	invalid(t, gpu.CopyOut(make([]uint64, 1), theirs), "closed")
	invalid(t, theirCount.Launch(s, gpu.Blocks(1, 1), 1), "closed")
	invalid(t, theirCount.SetMaxDynamicShared(1), "closed")
	_, err = theirCount.Attributes()
	invalid(t, err, "closed")
	_, err = theirCount.MaxResidentBlocks(32, 0)
	invalid(t, err, "closed")
	_, err = again.Kernel("count")
	invalid(t, err, "closed")
	_, err = again.Symbol("counter")
	invalid(t, err, "closed")
}
