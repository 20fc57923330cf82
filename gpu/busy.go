package gpu

import (
	"slices"
	"sync"
	"time"

	"github.com/mscclgo/mscclgo/internal/native"
)

// busy is what the program does for a device that other ranks may have to wait for.
type busy struct {
	mu  sync.Mutex
	now []*native.Busy // the oldest first
}

func init() {
	native.BeginBusy = func(d any, what string, compiles bool) func() { return d.(*Device).busy.begin(what, compiles) }
	native.BusyOf = func(d any) []native.Busy { return d.(*Device).busy.all() }
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
	it := &native.Busy{What: what, Since: time.Now(), Compiles: compiles}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = append(b.now, it)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now = slices.DeleteFunc(b.now, func(other *native.Busy) bool { return other == it })
	}
}

func (b *busy) all() (all []native.Busy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, it := range b.now {
		all = append(all, *it)
	}
	return all
}
