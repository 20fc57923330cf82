package shm

import (
	"github.com/mscclgo/mscclgo/gpu"
)

const (
	// batchesAhead is how many batches may be on their way into the ring.
	batchesAhead = 2 * pieces
	// batchEntries is the most entries of a batch.
	batchEntries = 64
)

// filler brings a connection's operations into the ring. What it has is its goroutine's.
type filler struct {
	c       *conn
	filled  uint64 // entries put into the ring, ever
	used    uint64 // bytes of data given away, ever
	pieces  [batchEntries]piece
	batches [batchesAhead]batch
	begun   uint64 // batches, ever
	ended   uint64 // those that are posted
}

// batch is entries that are posted together.
type batch struct {
	event  *gpu.Event // behind its copies
	copies bool       // the event must be waited for
	until  uint64     // entries filled with it
}

// piece is one entry of a batch that is being put together.
type piece struct {
	entry
	src       *gpu.Buffer // nil: in data
	srcOffset uint64
	data      []byte // belongs to the piece's place, which uses it again
}

func (f *filler) open(c *conn) (err error) {
	f.c = c
	for i := range f.batches {
		if f.batches[i].event, err = c.t.reg.Device().NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) events() (all []*gpu.Event) {
	for i := range f.batches {
		all = append(all, f.batches[i].event)
	}
	return all
}

// run fills the ring until the connection ends. Copies of several batches are under way;
// each is posted once its own are done.
func (f *filler) run() {
	for {
		for f.begun-f.ended < batchesAhead {
			n := f.take(f.begun == f.ended)
			if n == 0 {
				break
			}
			if err := f.fill(f.pieces[:n]); err != nil {
				f.c.broken(err)
				return
			}
		}
		if f.begun == f.ended || !f.post() {
			return
		}
	}
}

// take takes what fits into a batch off the queue, and gives it places in the ring. It
// returns 0 if there is nothing or no room and it may not wait, or the connection has ended.
func (f *filler) take(wait bool) int {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for spun := false; ; spun = true {
		if c.poll(); c.err != nil {
			return 0
		}
		if n := f.takeLocked(); n > 0 || !wait {
			return n
		}
		queued, done, finished := c.queued.Load(), c.done, c.finished
		switch idle := c.taken == queued; {
		case !spun:
			c.mu.Unlock()
			c.t.spin.Until(func() bool { return c.over() || c.queued.Load() != queued || c.ring.done.Load() != done })
			c.mu.Lock()
		case idle:
			c.work.Wait()
		default:
			c.sleep(&c.work, func() bool { return c.finished != finished })
		}
	}
}

// takeLocked is take without waiting. The caller holds the connection's mu.
func (f *filler) takeLocked() (n int) {
	c := f.c
	room := uint64(len(c.ring.data))
	given := uint64(0) // bytes of the batch
	for n < batchEntries && c.taken < c.queued.Load() && f.filled-c.finished < entryCount {
		o := &c.queue[c.taken%queueDepth]
		p := &f.pieces[n]
		p.entry, p.src = entry{kind: o.kind, memory: o.memory, offset: o.offset + o.given, from: o.from, to: o.to}, o.src
		if !o.kind.asks() && c.asked != c.fetched {
			break // what is queued behind a read finds its bytes
		}
		read := answer{}
		if o.kind.placed() {
			// What is in a row: to the end of the data, of which those of older entries are in use.
			at := f.used % room
			most := min(o.n-o.given, c.ring.piece()-given, room-at)
			size := min(most, room-(f.used-c.freed))
			if size == 0 || size < most && size < c.ring.piece()/4 {
				break // more will be free soon, and little is not worth a copy
			}
			if o.kind == kindExchange && size < o.n {
				break // it goes whole into the next batch
			}
			p.place, p.length, p.srcOffset = at, size, o.srcOffset+o.given
			switch {
			case o.kind.asks():
				read = answer{o.into, o.intoOffset + o.given, at, size}
				c.asked++
				c.asking.Signal()
			case o.src == nil:
				p.data = append(p.data[:0], o.data[o.given:o.given+size]...)
			}
			o.given += size
			given += size
			f.used += (size + alignment - 1) / alignment * alignment
		}
		if o.given == o.n {
			o.src = nil
			c.taken++
			c.changed.Broadcast()
		}
		c.spans[f.filled%entryCount] = span{end: f.used, ops: c.taken, read: read}
		c.ring.put(f.filled, &p.entry)
		f.filled++
		n++
		if given == c.ring.piece() {
			break
		}
	}
	return n
}

// fill begins to copy the data of a batch.
func (f *filler) fill(pieces []piece) error {
	c := f.c
	b := &f.batches[f.begun%batchesAhead]
	b.copies, b.until = false, f.filled
	for i := range pieces {
		p := &pieces[i]
		if p.kind != kindData {
			continue
		}
		host := p.data
		if p.src != nil {
			if host = c.t.host(p.src); host != nil {
				host = host[p.srcOffset : p.srcOffset+p.length]
			}
		}
		if host != nil {
			copy(c.ring.data[p.place:], host)
			continue
		}
		if err := c.stream.Copy(c.ring.buffer, dataAt+p.place, p.src, p.srcOffset, p.length); err != nil {
			return err
		}
		b.copies = true
	}
	if b.copies {
		if err := c.stream.Record(b.event); err != nil {
			return err
		}
	}
	f.begun++
	return nil
}

// post posts the oldest batch, once its copies are done. It reports false if the connection
// has ended.
func (f *filler) post() bool {
	c := f.c
	b := &f.batches[f.ended%batchesAhead]
	if b.copies {
		if err := b.event.Synchronize(c.ctx); err != nil {
			c.broken(err)
			return false
		}
	}
	f.ended++
	c.posted.Store(b.until)
	c.ring.posted.Store(b.until)
	if c.ring.receiverSleeps.Swap(0) == 1 {
		c.wake()
	}
	return true
}
