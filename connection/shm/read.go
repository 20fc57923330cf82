package shm

import (
	"errors"

	"github.com/mscclgo/mscclgo/connection/internal/target"
)

// A read is an entry with a place in the ring. The receiver fills the place, in the entry's order
// among the others. Then the rank that asked copies the bytes from there, to a memory that only it
// knows, and the place is free.

// answer is what is read, or a part of it.
type answer struct {
	into   *target.Memory // of this rank
	offset uint64
	place  uint64 // in the ring
	length uint64
}

// arrived finds the answers that the peer has put into the ring next, and reports whether there are any. The caller
// holds the connection's Mu.
func (f *filler) arrived() bool {
	c := f.c
	for i := c.finished; i < c.done && c.spans[i%entryCount].read.into != nil; i++ {
		f.answers = append(f.answers, c.spans[i%entryCount].read)
	}
	return len(f.answers) > 0
}

// fetch copies the answers to where they belong, and frees their places. It passes over what was closed meanwhile: a rank
// that closes what it reads into gives up the bytes.
func (f *filler) fetch() (err error) {
	c := f.c
	defer f.held.Release()
	copies := false
	for i := range f.answers {
		a := &f.answers[i]
		if f.held.Add(a.into) != nil {
			continue
		}
		if host := c.t.rank.Host(a.into.Buffer); host != nil {
			copy(host[a.offset:a.offset+a.length], c.ring.data[a.place:])
			continue
		}
		if err = c.stream.Copy(a.into.Buffer, a.offset, c.ring.buffer, dataAt+a.place, a.length); err == nil {
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
		if recorded := c.stream.Record(f.fetched); recorded != nil {
			return recorded
		}
		// Also once the connection has ended: the memories are held until then.
		if waited := f.fetched.Synchronize(c.Drain); waited != nil {
			return waited
		}
	}
	if err != nil {
		return err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for i := range uint64(len(f.answers)) {
		c.spans[(c.finished+i)%entryCount].read.into = nil
	}
	c.fetched += uint64(len(f.answers))
	c.finish()
	return nil
}
