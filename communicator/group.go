package communicator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// group holds what Group or HostGroup made: the windows of its ranks.
type group struct {
	of      *Communicator // whose it is, or was; nil before it is made
	window  *gpu.Buffer   // flags, then scratch; peers write it
	counts  table         // epochs, then arrivals; only this rank's kernels use them
	more    addresses     // of handle
	windows *PeerMemory
	handle  layout.Group
}

const (
	countBytes   = devicecode.MaxBlocks * uint64(unsafe.Sizeof(uint32(0)))
	scratchAlign = 256
)

// Group returns the handle of <mscclgo/group.cuh>, which kernels take by value: for
// barriers between the blocks of all ranks, for packet scratch and for epochs. The
// first call allocates each rank's window, device memory that all ranks map:
// Options.Scratch bytes, rounded up to 256, and 4 bytes for each of 256 blocks and
// each rank. Later calls return the same. Collective the first time. After the end of its context it may return up to
// 1 s late, so that the call works on all ranks or on none. After such an error, on any rank, all may call it again.
//
// A launch of more than 256 blocks, or of a grid of several dimensions, with this handle is refused: a
// kernel that uses no barriers and epochs may have a copy with Epochs and Arrivals 0.
//
// All kernels with this handle share the scratch, which is for packets; <mscclgo/group.cuh> says
// what else may lie there. Runners of package collective have windows of their own, of the same size.
//
// After [Communicator.Reform] the first call makes new windows, where the driver can at the
// addresses of the previous group's. If the handle equals the previous one, graphs that were
// captured with it are right.
//
// Errors: as for [Communicator.Share]; ErrInvalid when the ranks disagree on
// Options.Scratch; ErrUnsupported for more than [devicecode.MaxRanks] ranks, and
// when they do not all map each other's memory (see [Communicator.HostGroup]).
func (c *Communicator) Group(ctx context.Context) (devicecode.Group, error) {
	g, err := c.groupOf(ctx, "the group's windows", c.everyone(), groupChannel, c.options.Scratch)
	return layout.Handle[devicecode.Group](g), err
}

// HostGroup is like [Communicator.Group] for the ranks of [Communicator.HostRanks]
// only: in kernels, a rank is an index into that list, and the size is its length.
// Its windows and epochs are its own. Collective the first time, for all ranks of
// all hosts.
func (c *Communicator) HostGroup(ctx context.Context) (devicecode.Group, error) {
	g, err := c.groupOf(ctx, "the hosts' windows", c.hostRanks(), hostGroupChannel, c.options.Scratch)
	return layout.Handle[devicecode.Group](g), err
}

func (c communicatorInside) RunnersGroup(ctx context.Context) (layout.Group, error) {
	scratch := c.options.Scratch
	if len(c.hosts) > 1 {
		scratch = 0 // no collective between hosts has packets
	}
	const what, op = "the runners' windows", "communicator: make the runners' windows"
	if err := c.usable(op); err != nil {
		return layout.Group{}, err
	}
	if err := c.alikeRunners(ctx, c.begin("compare "+what, op)); err != nil {
		return layout.Group{}, err
	}
	return c.groupOf(ctx, what, c.hostRanks(), runnersChannel, scratch)
}

// alikeRunners leaves the group of the runners that a call has made on this rank, but not on all. Collective.
func (c *Communicator) alikeRunners(ctx context.Context, k *call) error {
	c.mu.Lock()
	kept := c.groups[runnersChannel]
	c.mu.Unlock()
	mine := []byte{0}
	made := kept != nil && kept.of == c
	if made {
		mine[0] = 1
	}
	all, err := k.collect(ctx, mine, nil)
	if err != nil || !made || !slices.ContainsFunc(all, func(theirs []byte) bool { return !bytes.Equal(theirs, mine) }) {
		return err
	}
	c.mu.Lock()
	delete(c.groups, runnersChannel)
	c.mu.Unlock()
	return k.leave(nil, func() error { return kept.close(c.private) })
}

// groupOf returns the group whose waits are reported with a channel number, and makes it the first time, with so many
// bytes of scratch. What this makes again of an earlier communicator's stays for the next one after an error too: a second
// failure loses no address.
func (c *Communicator) groupOf(ctx context.Context, what string, ranks []int, channel uint32, scratch uint64) (layout.Group, error) {
	name := "make " + what
	op := "communicator: " + name
	if err := c.usable(op); err != nil {
		return layout.Group{}, err
	}
	c.mu.Lock()
	g := c.groups[channel]
	if g != nil && g.of == c {
		defer c.mu.Unlock()
		return g.handle, nil
	}
	delete(c.groups, channel) // so that nobody else frees g
	c.mu.Unlock()
	again := g != nil
	if !again {
		g = &group{}
	}
	err := g.make(ctx, c, c.begin(name, op), ranks, channel, scratch)
	c.mu.Lock()
	closed := c.closed // meanwhile
	keep := !closed && (again || err == nil)
	if err == nil {
		g.of = c
	}
	if keep {
		c.groups[channel] = g
	}
	c.mu.Unlock()
	switch {
	case keep && err == nil:
		c.launches.HasBlocks(uint64(g.handle.Epochs), devicecode.MaxBlocks)
		return g.handle, nil
	case !keep:
		if closed {
			err = cmp.Or(err, c.usable(op))
		}
		err = errors.Join(err, g.close(c.private))
	}
	return layout.Group{}, err
}

// make makes the group, in the places of an earlier one if it was one.
func (g *group) make(ctx context.Context, c *Communicator, k *call, ranks []int, channel uint32, scratch uint64) error {
	flags := devicecode.MaxBlocks * uint64(len(ranks)) * uint64(unsafe.Sizeof(uint32(0)))
	flags = (flags + scratchAlign - 1) / scratchAlign * scratchAlign
	scratch = (scratch + scratchAlign - 1) / scratchAlign * scratchAlign
	me := slices.Index(ranks, c.Rank())
	g.handle = layout.Group{
		Rank:          uint32(me),
		Size:          uint32(len(ranks)),
		ScratchOffset: flags,
		ScratchSize:   scratch,
		Watch:         layout.Watch(c.watch(me, channel)),
	}
	err := g.allocate(c, len(ranks), flags+scratch)
	windows, err := c.shareAt(ctx, k, g.window, err, g.windows)
	if err != nil {
		return err
	}
	err = g.windows.Close() // but for what these have taken
	if g.windows = windows; err == nil {
		err = g.finish(c, k.op, ranks)
	}
	return k.agreeLast(ctx, err)
}

// allocate allocates this rank's memory, where it was if it was there, and zeroes it.
func (g *group) allocate(c *Communicator, ranks int, windowBytes uint64) (err error) {
	if err := fitsHandle(ranks); err != nil { // before every rank allocates what cannot be used
		return err
	}
	if g.window, err = c.renewed(g.window, windowBytes); err != nil {
		return err
	}
	if err := zero(g.window); err != nil {
		return err
	}
	if err := g.counts.room(c.private, 2*countBytes); err != nil {
		return err
	}
	counts := g.counts.memory
	g.handle.Epochs, g.handle.Arrivals = counts.Ptr(), counts.Ptr()+gpu.Ptr(countBytes)
	return zero(counts)
}

// finish checks that the windows have one size and fills in the handle.
func (g *group) finish(c *Communicator, op string, ranks []int) error {
	for _, rank := range ranks {
		if m := g.windows.Memories[rank]; m.Size() != g.window.Size() {
			return mscclgo.Errorf(mscclgo.ErrInvalid, op, "its window has %d bytes, this rank's %d: Options.Scratch must be the same on all ranks", m.Size(), g.window.Size()).At(c.Rank(), rank)
		}
	}
	at, err := g.windows.addressesOf(ranks)
	if err != nil {
		return err
	}
	g.handle.More, err = g.more.place(c.private, at[copy(g.handle.Windows[:], at):])
	return err
}

func (g *group) close(private *arena) error {
	g.counts.free(private)
	g.more.free(private)
	return errors.Join(g.windows.Close(), g.window.Close())
}

// zero clears a buffer piece by piece, so that the host needs little memory.
func zero(b *gpu.Buffer) error {
	blank := make([]byte, min(b.Size(), 1<<20))
	for offset := uint64(0); offset < b.Size(); offset += uint64(len(blank)) {
		n := min(uint64(len(blank)), b.Size()-offset)
		part, err := b.Slice(offset, n)
		if err != nil {
			return err
		}
		if err := gpu.CopyIn(part, blank[:n]); err != nil {
			return err
		}
	}
	return nil
}
