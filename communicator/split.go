package communicator

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/watch"
	"github.com/mscclgo/mscclgo/internal/wire"
)

// Split divides the group: the ranks that pass the same color form a group of their own,
// in the order of their keys, and by rank where keys are equal. It returns this rank's
// communicator of that group, or nil for a negative color. Collective, also for ranks
// with a negative color.
//
// The new group, the child, has the device and the options of this one, the parent, and
// nothing else, nor its timeline: its bootstrap is new, always a [*bootstrap.Bootstrap], and its ranks
// connect to each other over TCP at a rendezvous that its rank 0 opens. It meets its ranks
// under a secret of its own, which travels over the parent's bootstrap encrypted with the
// parent's. Over a *bootstrap.Bootstrap its options (TLS, Interface, Advertise) are the
// child's too; over any other, rank 0 of the child listens on every address.
//
// Each group fails alone. When a rank dies, the parent fails, and of the children only
// the ones that have this rank. An Abort, a wait that fails and calls that differ fail the
// one communicator in which they happen; the parent's failure fails no child, and a
// child's failure not its parent. Where ranks of one group wait for a rank that waits in another, the
// error names whom that rank waits for. A rank outside the group that fails is named in the text, as
// "rank 3 of the outer group", the group from which all these groups came; Error.Peer then is a rank of
// the group that fails. [Communicator.Abort] of one group with the error of another finds its culprit.
//
// The caller closes the child, before or after the parent. But a parent from [Join] closes the
// device, and then every call of a child that needs the device fails: close the children first.
// If ranks of a child share a device, their kernels that wait for each other share it with the
// parent's kernels too.
//
// Errors: the group's if it has failed; as for [bootstrap.Connect] and [New], for this child
// only, behind the group's if it has failed meanwhile.
func (c *Communicator) Split(ctx context.Context, color, key int) (*Communicator, error) {
	op := fmt.Sprintf("communicator: split with color %d and key %d", color, key)
	if err := c.usable(op); err != nil {
		return nil, err
	}
	k := c.begin("split", op)
	choices, err := collectAll(ctx, k, choiceWire, &choice{uint64(color), uint64(key)}, nil)
	if err != nil {
		return nil, err
	}
	ranks := ofColor(color, choices)
	leads := color >= 0 && ranks[0] == c.Rank()
	var rendezvous *bootstrap.Rendezvous
	var id []byte
	if leads {
		if rendezvous, err = c.newRendezvous(); err == nil {
			defer rendezvous.Close()
			id = k.seal([]byte(rendezvous.ID().String()))
		}
	}
	all, err := k.collect(ctx, id, err)
	if err != nil || color < 0 {
		return nil, err
	}
	if id, err = k.open(all[ranks[0]]); err != nil {
		return nil, k.errorf(mscclgo.ErrRemote, ranks[0], "its message is malformed: %w", err)
	}
	child, err := c.newChild(ctx, ranks, string(id))
	if err != nil {
		peer := peerOf(err)
		if peer >= 0 && peer < len(ranks) {
			peer = ranks[peer] // by the number that it has in this group
		}
		return nil, c.explained(k.errorf(mscclgo.KindOf(err), peer, "the group of ranks %v was not made: %w", ranks, err))
	}
	return child, nil
}

// choice is a rank's color and key.
type choice struct{ color, key uint64 }

var choiceWire = wire.For[choice]()

// ofColor returns the ranks of a color, in the order of their new ranks.
func ofColor(color int, all []choice) (ranks []int) {
	for rank, theirs := range all {
		if int(theirs.color) == color {
			ranks = append(ranks, rank)
		}
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(int(all[a].key), int(all[b].key)) })
	return ranks
}

// newRendezvous opens the rendezvous of another group of these machines.
func (c *Communicator) newRendezvous() (*bootstrap.Rendezvous, error) {
	if boot, ok := c.given.(*bootstrap.Bootstrap); ok {
		return boot.Internal().NewRendezvous()
	}
	return bootstrap.NewRendezvous(":0", c.options.Logger)
}

// newChild returns the communicator of a group of these ranks, which meet at an id.
func (c *Communicator) newChild(ctx context.Context, ranks []int, text string) (*Communicator, error) {
	o := bootstrap.Options{HeartbeatTimeout: c.options.HeartbeatTimeout, Logger: c.options.Logger}
	if boot, ok := c.given.(*bootstrap.Bootstrap); ok {
		o = boot.Options()
	}
	var err error
	if o.ID, err = bootstrap.ParseUniqueID(text); err != nil {
		return nil, err
	}
	o.Rank, o.Size, o.Timeout = slices.Index(ranks, c.Rank()), len(ranks), c.options.Timeout
	boot, err := bootstrap.Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	boot.Internal().AskDead(c.knowsDead(ranks))
	options := c.options
	options.Trace, options.branch = "", c.failure.observer.branch.child(ranks) // the file is the parent's
	child, err := New(ctx, boot, c.dev, options)
	if err != nil {
		c.failChild(boot, ranks, err)
		return nil, errors.Join(err, boot.Close())
	}
	child.owned = append(child.owned, boot.Close)
	return child, nil
}

// failChild fails a group of these ranks because of err, or, where this group has failed because of
// one of them, in that one's name: the others of the new group are not to blame this rank.
func (c *Communicator) failChild(boot *bootstrap.Bootstrap, ranks []int, err error) {
	why := c.boot.Err()
	if why != nil {
		if culprit := slices.Index(ranks, watch.Culprit(why, mscclgo.NoRank)); culprit >= 0 {
			boot.Internal().Blame(culprit, fmt.Errorf("the group that was split has failed; ranks have its numbers: %w", why))
			return
		}
	}
	boot.Abort(err)
}

// cipher returns what encrypts messages of a call for the ranks of the group.
func (k *call) cipher() (aead cipher.AEAD, about []byte) {
	key := k.c.boot.Key("split")
	block, err := aes.NewCipher(key[:])
	if err == nil {
		aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		panic(err) // a key of 32 bytes is right
	}
	return aead, binary.LittleEndian.AppendUint64(nil, k.number())
}

// seal encrypts a message for the ranks of the group.
func (k *call) seal(text []byte) []byte {
	aead, about := k.cipher()
	return aead.Seal(nil, nil, text, about)
}

// open decrypts what seal returned.
func (k *call) open(sealed []byte) ([]byte, error) {
	aead, about := k.cipher()
	return aead.Open(nil, nil, sealed, about)
}
