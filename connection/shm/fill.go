package shm

import (
	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
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
	begun   uint64       // batches, ever
	ended   uint64       // batches that are posted
	answers []answer     // that are fetched next
	held    target.Holds // of answers that are being fetched
	fetched *gpu.Event   // behind their copies
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
		if f.batches[i].event, err = c.NewEvent(); err != nil {
			return err
		}
	}
	f.fetched, err = c.NewEvent()
	return err
}

// run fills the ring until the connection ends. Copies of several batches are under way;
// each is posted once its own are done. When all are posted it fetches what has been read.
func (f *filler) run() {
	for {
		for f.begun-f.ended < batchesAhead {
			n := f.take(f.begun == f.ended)
			if n == 0 {
				break
			}
			if err := f.fill(f.pieces[:n]); err != nil {
				f.c.Broken(err)
				return
			}
		}
		var err error
		switch {
		case f.begun != f.ended:
			err = f.post()
		case len(f.answers) > 0:
			err = f.fetch()
		default: // the connection has ended
			return
		}
		if err != nil {
			f.c.Broken(err)
			return
		}
	}
}

// take takes what fits into a batch off the queue, and gives it places in the ring. It
// returns 0 if there is nothing or no room and it may not wait, or there are answers to fetch, or
// the connection has ended.
func (f *filler) take(wait bool) int {
	c := f.c
	c.Mu.Lock()
	defer c.Mu.Unlock()
	f.answers = f.answers[:0]
	for spun := false; ; spun = true {
		if c.Poll(); c.Err != nil {
			return 0
		}
		if n := f.takeLocked(); n > 0 || f.arrived() || !wait {
			return n
		}
		queued, done := c.Queued.Load(), c.done
		switch idle := c.Taken == queued && c.asked == c.fetched; {
		case !spun:
			c.Mu.Unlock()
			c.t.rank.Spin.Until(func() bool { return c.Over() || c.Queued.Load() != queued || c.ring.done.Load() != done })
			c.Mu.Lock()
		case idle:
			c.Work.Wait()
		default:
			c.sleep(&c.Work, func() bool { return c.done != done })
		}
	}
}

// takeLocked is take without waiting. The caller holds the connection's Mu.
func (f *filler) takeLocked() (n int) {
	c := f.c
	room := uint64(len(c.ring.data))
	given := uint64(0) // bytes of the batch
	for n < batchEntries && c.Taken < c.Queued.Load() && f.filled-c.finished < entryCount {
		o := c.Oldest()
		p := &f.pieces[n]
		p.entry, p.src = entry{Frame: o.Frame(f.filled)}, o.Src
		if !o.Kind.Asks() && c.asked != c.fetched {
			break // what is queued behind a read finds its bytes
		}
		read := answer{}
		if placed(p.Kind) {
			// Bytes in a row: up to the end of the data, less the bytes of older entries.
			at := f.used % room
			most := min(o.N-o.Given, c.ring.piece()-given, room-at)
			size := min(most, room-(f.used-c.freed))
			if size == 0 || size < most && size < c.ring.piece()/4 {
				break // more will be free soon, and little is not worth a copy
			}
			if o.Kind == message.Exchange && size < o.N {
				break // it goes whole into the next batch
			}
			p.place, p.Length, p.srcOffset = at, size, o.SrcOffset+o.Given
			switch {
			case o.Kind.Asks():
				if o.Kind == message.Read {
					p.Total = size // each part is a read of its own
				}
				read = answer{o.Into, o.IntoOffset + o.Given, at, size}
				c.asked++
			case o.Src == nil:
				p.data = append(p.data[:0], o.Data[o.Given:o.Given+size]...)
			}
			o.Given += size
			given += size
			f.used += (size + alignment - 1) / alignment * alignment
		}
		if o.Given == o.N {
			c.Sent()
		}
		c.spans[f.filled%entryCount] = span{end: f.used, ops: c.Taken, read: read}
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
		if p.Kind != message.Data {
			continue
		}
		host := p.data
		if p.src != nil {
			if host = c.t.rank.Host(p.src); host != nil {
				host = host[p.srcOffset : p.srcOffset+p.Length]
			}
		}
		if host != nil {
			copy(c.ring.data[p.place:], host)
			continue
		}
		if err := c.stream.Copy(c.ring.buffer, dataAt+p.place, p.src, p.srcOffset, p.Length); err != nil {
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

// post posts the oldest batch, once its copies are done.
func (f *filler) post() error {
	c := f.c
	b := &f.batches[f.ended%batchesAhead]
	if b.copies {
		if err := b.event.Synchronize(c.Ctx); err != nil {
			return err
		}
	}
	f.ended++
	c.posted.Store(b.until)
	c.ring.posted.Store(b.until)
	if c.ring.receiverSleeps.Swap(0) == 1 {
		c.wake()
	}
	return nil
}
