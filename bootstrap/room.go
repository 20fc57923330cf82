package bootstrap

import (
	"context"
	"fmt"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/handshake"
	"github.com/mscclgo/mscclgo/internal/watch"
)

// short ends the rendezvous because it cannot accept ranks, which would wait for it until their time is up.
func (r *Rendezvous) short(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse(r.fault(fmt.Sprintf("has accepted no rank for %v, as its process lacks descriptors or memory: %v; raise its limits (ulimit -n)", shortTime, err)))
}

// checkRoom ends the rendezvous if its process may not have as many descriptors as a group of size ranks
// needs at once. The caller holds r.mu.
func (r *Rendezvous) checkRoom(size int) {
	needs := size // a connection for each rank
	if r.id.hosted {
		needs += len(children(0, size)) + 3 // of rank 0: to its children, its own join, its listener, and one for a while
	}
	if limit := handshake.DescriptorLimit(); r.used+needs > limit {
		r.refuse(r.fault(fmt.Sprintf("may have %d descriptors open and had %d when it began, and a group of %d ranks needs %d more: raise its limit (ulimit -n)",
			limit, r.used, size, needs)))
	}
}

// expect is for the rank 0 that has the rendezvous, and knows the world size before any rank comes.
func (r *Rendezvous) expect(size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.largest = max(r.largest, size)
	r.checkRoom(size)
}

// fault returns the refusal for a fault of the process that has the rendezvous.
func (r *Rendezvous) fault(text string) watch.Fact {
	if r.id.hosted {
		return refusal(mscclgo.ErrSystem, 0, "rank 0, which holds the rendezvous, "+text)
	}
	return refusal(mscclgo.ErrSystem, mscclgo.NoRank, "the process that holds the rendezvous "+text)
}

// giveUp ends the rendezvous of a rank 0 that does not come to it itself, because of err.
func (r *Rendezvous) giveUp(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse(refusal(mscclgo.ErrRemote, 0, "rank 0, which holds the rendezvous, cannot join the group: "+err.Error()))
}

// unlessRefused returns a context that ends with ctx, and when the group can no longer form. So rank 0 hears of that
// where the rendezvous cannot accept it.
func (r *Rendezvous) unlessRefused(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	context.AfterFunc(r.forming, cancel)
	return ctx, cancel
}

// why returns why the group can no longer form, or nil.
func (r *Rendezvous) why() *watch.Fact {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}
