package gpu

import (
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo/internal/inside"
)

// busy is what the program does for a device that other ranks may have to wait for.
type busy struct {
	mu  sync.Mutex
	now []*inside.Busy // the oldest first
}

// driver notes that the driver begins to do something that may wait for kernels, until end is called.
func (d *Device) driver(what string) (end func()) {
	end = d.busy.begin(what, false)
	if slow := d.slow.Load(); slow != nil {
		(*slow)()
	}
	return end
}

// begin notes that something begins, until end is called.
func (b *busy) begin(what string, compiles bool) (end func()) {
	it := &inside.Busy{What: what, Since: time.Now(), Compiles: compiles}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = append(b.now, it)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now = slices.DeleteFunc(b.now, func(other *inside.Busy) bool { return other == it })
	}
}

func (b *busy) all() (all []inside.Busy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.now {
		all = append(all, *it)
	}
	return all
}
