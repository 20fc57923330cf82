package communicator

import "time"

// SetLostPatience has a rank whose connection breaks wait for so long for news of why.
func SetLostPatience(c *Communicator, d time.Duration) { c.patience = d }

// ArenaBytes returns the bytes of device memory that are in use of a
// communicator's arenas.
func ArenaBytes(c *Communicator) uint64 {
	used := uint64(0)
	for _, a := range []*arena{c.shared, c.private} {
		a.mu.Lock()
		for _, s := range a.slabs {
			used += s.buf.Size()
			for _, f := range s.free {
				used -= f.size
			}
		}
		a.mu.Unlock()
	}
	return used
}
