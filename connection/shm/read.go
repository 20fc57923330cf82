package shm

import (
	"errors"
	"sync"

	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

// A read is an entry with a place in the ring that the receiver fills, in its order among the
// other entries. Once that is done the rank that asked copies it from there, to a memory that
// only it knows, and the place is free.

// answer is what is read, or a part of it.
type answer struct {
	into   *target.Memory // of this rank
	offset uint64
	place  uint64 // in the ring
	length uint64
}

// fetcher copies answers from the ring. What it has is its goroutine's, which begins with the first read.
type fetcher struct {
	c       *conn
	running sync.WaitGroup
	stream  *gpu.Stream
	event   *gpu.Event
	parts   []answer
	held    []*target.Memory // of those that are being copied
}

// open makes what the goroutine needs, as a device may wait for kernels before it makes streams.
func (f *fetcher) open(c *conn) (err error) {
	f.c = c
	if f.stream, err = c.NewStream(); err == nil {
		f.event, err = c.NewEvent()
	}
	return err
}

// run fetches what the peer has put into the ring, until the connection ends.
func (f *fetcher) run() {
	for f.take() {
		if err := f.fetch(); err != nil {
			f.c.Broken(err)
			return
		}
		f.c.fetchedAll(len(f.parts))
	}
}

// take waits for answers. It reports false if the connection has ended.
func (f *fetcher) take() bool {
	c := f.c
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for spun := false; ; {
		if c.Poll(); c.Err != nil {
			return false
		}
		f.parts = f.parts[:0]
		for i := c.finished; i < c.done && c.spans[i%entryCount].read.into != nil; i++ {
			f.parts = append(f.parts, c.spans[i%entryCount].read)
		}
		done := c.done
		switch {
		case len(f.parts) > 0:
			return true
		case c.asked == c.fetched:
			c.asking.Wait()
			spun = false
		case !spun:
			c.Mu.Unlock()
			c.t.rank.Spin.Until(func() bool { return c.Over() || c.ring.done.Load() != done })
			c.Mu.Lock()
			spun = true
		default:
			c.sleep(&c.Changed, func() bool { return c.done != done })
		}
	}
}

// fetch copies the parts to where they belong. It passes over what was closed meanwhile: a rank
// that closes what it reads into gives up the bytes.
func (f *fetcher) fetch() (err error) {
	c := f.c
	defer func() {
		for _, m := range f.held {
			m.Release()
		}
		f.held = f.held[:0]
	}()
	copies := false
	for i := range f.parts {
		a := &f.parts[i]
		if !a.into.Hold() {
			continue
		}
		f.held = append(f.held, a.into)
		if host := c.t.rank.Host(a.into.Buffer); host != nil {
			copy(host[a.offset:a.offset+a.length], c.ring.data[a.place:])
			continue
		}
		if err = f.stream.Copy(a.into.Buffer, a.offset, c.ring.buffer, dataAt+a.place, a.length); err == nil {
			copies = true
			continue
		}
		var gone *target.Refusal
		if !errors.As(a.into.Failed(err), &gone) {
			break
		}
		err = nil // its buffer was closed
	}
	if copies {
		if recorded := f.stream.Record(f.event); recorded != nil {
			return recorded
		}
		// Also once the connection has ended: the memories are held until then.
		if waited := f.event.Synchronize(c.Drain); waited != nil {
			return waited
		}
	}
	return err
}

// fetchedAll notes that the next n entries were fetched.
func (c *conn) fetchedAll(n int) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.fetched += uint64(n)
	for i := range uint64(n) {
		c.spans[(c.finished+i)%entryCount].read.into = nil
	}
	c.finish()
}
