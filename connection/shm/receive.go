package shm

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/mscclgo/mscclgo/connection/internal/message"
	"github.com/mscclgo/mscclgo/connection/internal/target"
	"github.com/mscclgo/mscclgo/gpu"
)

// receiver is the receiving end of a ring. One stream does all copies in the order of the
// entries, so that an update follows the data before it without waiting.
//
// Goroutines: one that applies entries, and reads the peer's messages while there are none, and one while
// the peer is told of memories that were closed.
type receiver struct {
	half
	message.Applier

	// What the goroutine that applies has.
	taken   uint64       // entries that are applied or being copied, ever
	done    uint64       // entries that are done, as the peer was told
	holds   target.Holds // of what was queued since the last batch
	given   uint64       // bytes of that
	batches [batchesAhead]received
	begun   atomic.Uint64 // batches, ever
	ended   uint64        // batches that are done
	copied  uint64        // entries that are done with the last of these
}

// received is work on the stream with an event behind it.
type received struct {
	event *gpu.Event
	until uint64       // entries that are done with it
	holds target.Holds // to release then
}

// receive begins to receive from a peer. It owns the socket and the ring, also when it fails.
func (t *Transport) receive(peer int, sock *net.UnixConn, ring *ring) error {
	r := new(receiver)
	r.awaited, r.Receives = true, true
	err := r.open(t, r, peer, sock, ring, func() {})
	if err == nil {
		err = r.Prepare(&r.End)
	}
	for i := range r.batches {
		if err == nil {
			r.batches[i].event, err = r.NewEvent()
		}
	}
	if err == nil {
		err = r.start()
	}
	if err != nil {
		r.Broken(err)
		return errors.Join(err, r.release())
	}
	return nil
}

func (r *receiver) start() error {
	return r.Begin(func() {
		r.Tasks.Go(func() {
			r.run()
			go func() { // which waits for this goroutine
				if err := r.Close(); err != nil {
					r.t.rank.Log.Warn("shm: close what a peer sent through", "peer", r.Peer, "error", err)
				}
			}()
		})
	})
}

// Watch does nothing, as the peer owes nothing.
func (r *receiver) Watch(time.Time) {}

// Close tells the peer, unless the half has ended, and releases it.
func (r *receiver) Close() error {
	return r.CloseOnce(func() error {
		r.Leave(r.t.rank.Parting)
		r.Tasks.Wait()
		err := r.release()
		for i := range r.batches {
			r.batches[i].holds.Release()
		}
		r.holds.Release()
		return err
	})
}

// woken takes a message of the peer.
func woken(f *message.Frame) error {
	if f.Kind != message.Wake {
		return fmt.Errorf("a packet of kind %d to the rank that receives", f.Kind)
	}
	return nil
}

// run applies entries until the half ends.
func (r *receiver) run() {
	for !r.Over() {
		posted := r.ring.posted.Load()
		if posted-r.done > entryCount {
			r.nonsense(fmt.Errorf("it says that %d entries are posted, of which %d are done: the ring has %d", posted, r.done, entryCount))
			return
		}
		before := r.taken
		for r.taken != posted && r.begun.Load()-r.ended < batchesAhead && r.given < r.ring.piece() && r.taken-before < batchEntries {
			e, err := r.ring.entry(r.taken)
			if err == nil {
				err = r.apply(&e)
			}
			if err != nil {
				r.refuse(&e, err)
				return
			}
			r.taken++
		}
		err := r.end()
		if err == nil {
			err = r.reap()
		}
		if err != nil {
			r.Broken(err)
			return
		}
		r.publish()
		if r.taken == posted || r.begun.Load()-r.ended == batchesAhead {
			r.wait(posted)
		}
	}
}

// apply does what an entry asks for, or queues it on the stream.
func (r *receiver) apply(e *entry) error {
	m, err := r.t.rank.Targets.Find(e.Memory, e.Offset, e.Size(), e.Kind.Word())
	if err != nil {
		return err
	}
	host := r.t.rank.Host(m.Buffer)
	if host != nil && e.Kind.Atomic() {
		if err := r.settle(); err != nil {
			return err
		}
	}
	done := r.begun.Load() == r.ended && len(r.holds) == 0
	if err := r.holds.Add(m); err != nil {
		return err
	}
	if host != nil && done {
		defer r.holds.Release()
		r.ByHost(&e.Frame, m, host, r.ring.data[e.place:])
		return nil
	}
	place := dataAt + e.place
	if placed(e.Kind) {
		r.given += e.Length
	} else {
		// The value lies in the entry, where the peer can still change it to another that it may as well have sent.
		place = entryAt(r.taken) + 8*message.TotalWord
	}
	return r.ByDevice(&e.Frame, m, r.ring.buffer, place)
}

// settle waits until the stream has done what was queued, as it may have stores to do where the
// host is to change a word.
func (r *receiver) settle() error {
	err := r.end()
	for err == nil && r.begun.Load() != r.ended {
		oldest := r.batches[r.ended%batchesAhead].event
		if err = oldest.Synchronize(r.Drain); err == nil {
			err = r.reap()
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", message.ErrDevice, err)
	}
	return nil
}

// end ends a batch, if something was queued on the stream.
func (r *receiver) end() error {
	if len(r.holds) == 0 {
		return nil
	}
	b := &r.batches[r.begun.Load()%batchesAhead]
	if err := r.Stream.Record(b.event); err != nil {
		return err
	}
	b.until, b.holds, r.holds = r.taken, r.holds, b.holds
	r.given = 0
	r.begun.Add(1)
	return nil
}

// reap releases what the stream is done with.
func (r *receiver) reap() error {
	for r.begun.Load() != r.ended {
		b := &r.batches[r.ended%batchesAhead]
		if done, err := b.event.Query(); !done || err != nil {
			return err
		}
		b.holds.Release()
		r.copied = b.until
		r.ended++
	}
	return nil
}

// publish tells the peer how much is done.
func (r *receiver) publish() {
	done := r.taken
	if r.begun.Load() != r.ended {
		done = max(r.copied, r.done)
	}
	if done == r.done {
		return
	}
	r.done = done
	r.ring.done.Store(done)
	if r.ring.senderSleeps.Swap(0) == 1 {
		r.wake()
	}
}

// wait waits until the peer has posted more than that or the stream has done more.
func (r *receiver) wait(posted uint64) {
	more := func() bool { return r.ring.posted.Load() != posted || r.Over() }
	if r.begun.Load() != r.ended {
		oldest := r.batches[r.ended%batchesAhead].event
		if !r.t.rank.Spin.Until(func() bool {
			done, err := oldest.Query()
			return done || err != nil || r.begun.Load()-r.ended < batchesAhead && more()
		}) {
			// reap finds the error, if there is one.
			oldest.Synchronize(r.Ctx)
		}
		return
	}
	if r.t.rank.Spin.Until(more) {
		return
	}
	r.ring.receiverSleeps.Store(1)
	if !more() { // the peer may have looked before the store
		r.listen(woken)
	}
}

// refuse ends the half because of an entry, and tells the peer why.
func (r *receiver) refuse(e *entry, err error) {
	e.Op = r.taken
	r.Refuse(&e.Frame, err)
}

// nonsense is refuse for a count.
func (r *receiver) nonsense(err error) { r.refuse(&entry{}, err) }
