package target

// MaxWithdrawn bounds a [Withdrawn]. Of other memories the peer refuses what comes.
const MaxWithdrawn = 4096

// Withdrawn is memories that a peer said it has closed. The zero value is empty. It is for
// one goroutine at a time.
type Withdrawn struct{ ids map[uint32]struct{} }

// Add adds a memory, in the place of another if there are too many.
func (w *Withdrawn) Add(id uint32) {
	if w.ids == nil {
		w.ids = map[uint32]struct{}{}
	}
	for one := range w.ids {
		if len(w.ids) < MaxWithdrawn {
			break
		}
		delete(w.ids, one)
	}
	w.ids[id] = struct{}{}
}

// Has reports whether a memory is in it.
func (w *Withdrawn) Has(id uint32) bool {
	_, ok := w.ids[id]
	return ok
}
