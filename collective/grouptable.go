package collective

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/layout"
)

// The constants of group.cu.
const (
	groupSlots     = 4                       // kSlots
	groupOfferRoom = 4                       // kOfferRoom
	inTable        = 92                      // kInTable
	pairsInTable   = 2 * layout.RanksByValue // kPairsInTable
	inStore        = 240                     // kInStore
	mostOfPair     = 1<<20 - 1
	mostOfGroup    = 1<<24 - 1
)

// storeThreads is the threads of a kernel that stores messages, and loadedMessages how many
// load has room for.
const (
	storeThreads   = 256
	loadedMessages = 1 << 16
)

// groupSizes are what group.cu is launched with, alike on all ranks but for blocks and threads. lanes and
// packets are for all ranks of a host together: each has its part of them.
type groupSizes struct {
	lanes       uint64 // that a rank has with another of its host, either way; see lanesOf
	keeps       uint64 // and for what stays where it is, at most
	ofAll       uint64 // lanes of all others that a call of all ranks uses, either way; see ofAllLanes
	slot        uint64 // bytes of a slot for what does not go as packets, whole lines
	packetSlot  uint64 // bytes of a slot for packets, whole LL128 packets
	packets     uint64 // bytes of a message that goes as LL128 packets, where there is NVLink
	packets16   uint64 // bytes of one that goes as LL16 packets elsewhere
	leastPacked uint64 // bytes of a lane's lot of a message that goes as packets, whole lines
	least       uint64 // of another
	post        uint64 // bytes of a post between hosts, at most
	large       uint64 // bytes of the largest message that is not stored where it belongs; 0 if none is
	largePacked uint64 // the same for LL128 packets where that is more, for all ranks of a host together
	piece       uint64 // of such a message that a lane stores at a time, bytes, whole lines
	long        uint64 // bytes of messages of which each lane that stores has a multiprocessor of its own; see storing
	blocks      int
	threads     int
}

// defaultGroupSizes have a block for each lane that two ranks use, of either direction and for what
// stays where it is, two a multiprocessor: while one waits until its stores are out, others store.
// Among many ranks slots are smaller; see fitting.
//
// Messages of more than 2 MiB are stored where they belong, where that can be, and with NVLink between two ranks those
// of more than 4 MiB. The sender awaits an offer: on two H200s an all-to-all of messages of 3 MiB takes 16.9 us so and
// 15.2 by packets, and one of 4 MiB 20.0 and 19.6. Where they are not stored so, packets carry up to 8 MiB between two
// ranks. A lane's pieces are 256 KiB: it looks after the block's other lanes between them, and of up to 16 MiB for
// each of 64 lanes there is one.
var defaultGroupSizes = groupSizes{
	lanes: 192, keeps: 64, ofAll: 192, slot: 64 << 10, packetSlot: 40 << 10, packets: 16 << 20, packets16: 128 << 10, leastPacked: 4 << 10, least: 16 << 10, post: mostPost,
	large: 2 << 20, largePacked: 8 << 20, piece: 256 << 10, long: 16 << 20, blocks: 256, threads: 512,
}

// groupTable is Table of group.cu, and what is beside it.
type groupTable struct {
	arg struct {
		Small, SlotBytes, LeastLots uint64
		More                        gpu.Ptr
		Lanes, Pairs                uint32
		Pair                        [pairsInTable]workPair
		Large, Piece                uint64
		Storing, Most               uint32
		Messages                    [inTable]workMessage
	}
	messages []workMessage
	pairs    []workPair
	tasks    int
	most     uint64 // bytes of the largest message
	places   bool   // whether there are large messages between ranks of the host
	busy     int    // tasks of places' kernel, without the tasks that only wait until peers have stored
	spared   int    // lanes of pairs that send large messages alone, and store nothing
	declined bool   // whether this rank receives a large message whose place it cannot offer
	ofAll    uint64 // what the messages of calls of all ranks have in What
	waits    bool   // the kernel begins when the kernel before has ended
	used     []use  // the memories in which places are offered
}

// workMessage is Message of group.cu.
type workMessage struct {
	At   gpu.Ptr
	What uint64
}

const workMessageBytes = 16

// workPair is Pair of group.cu.
type workPair struct{ Where, What uint32 }

// mostTasksOf returns kMostTasks of group.cu for so many ranks. Among a few ranks that is room for the
// lanes with several others by default, and for the lanes that keep.
func mostTasksOf(ranks int) int {
	if ranks > layout.RanksByValue {
		return 2 * devicecode.MaxRanks
	}
	return 448
}

// groups is what a runner has for its groups of sends and receives.
type groups struct {
	sizes  groupSizes
	box    *Memory // nil before load
	counts bool    // the first group is one of the calls that are matched
	blocks launchable
	warps  launchable
	places launchable
	stores launchable
	event  *gpu.Event // for streams that join and part
	// handle and shared are the first arguments of the kernels, and hosts, where there are several, those
	// behind the table.
	handle, shared any
	hosts          []any
	near           []int // of each rank, its number on this host, or -1
	// work, sends, receives and extents are of the group that is being launched, empty between groups.
	work            groupTable
	sends, receives [][]*message
	extents         []extent
	plan            *plan
	// tables are for the messages of groups that have more than go with a kernel's parameters.
	// The last one is used; graphs hold the addresses of those before.
	tables []*gpu.Buffer
}

func (g *groups) loaded() bool { return g.box != nil }

// lanes returns how many lanes each rank of a host has to each other. Those on other hosts have one.
func (g *groups) lanes(r *Runner) uint64 {
	near := uint64(r.group.Size)
	return lanesOf(g.sizes.lanes, near, uint64(r.comm.Size())-near)
}

// lanesOf returns how many of so many lanes a rank has to another of its host of `near` ranks, which has
// as many to it, besides one to and from each of `far`. Where a rank has several others there are twice
// as many: it may have large messages with one of them only, and their lanes are not for others.
func lanesOf(all, near, far uint64) uint64 {
	if near > 2 {
		all *= 2
	}
	return max(1, (max(all, 2*far)-2*far)/(2*max(near-1, 1)))
}

// othersTasks returns the tasks of a rank that exchanges large messages with all others.
func othersTasks(near, far, lanes uint64) uint64 { return 2*(near-1)*lanes + 2*far }

// ofAllLanes returns how many lanes of a pair a message is divided among in a call in which all ranks of a host may
// send to all.
func (g *groups) ofAllLanes(r *Runner) uint64 {
	near := uint64(r.group.Size)
	far := 2 * (uint64(r.comm.Size()) - near)
	return min(g.lanes(r), max(1, (max(g.sizes.ofAll, far)-far)/(2*max(near-1, 1))))
}

// keepLanes returns how many lanes there are for what stays where it is, besides so many tasks.
func (s groupSizes) keepLanes(ranks int, others uint64) uint64 {
	return min(s.keeps, uint64(mostTasksOf(ranks))-others)
}

// small returns the bytes of the largest message that goes as packets.
func (g *groups) small(r *Runner) uint64 {
	if r.link == NVLink {
		return g.sizes.packets / uint64(r.group.Size)
	}
	return g.sizes.packets16 / uint64(r.group.Size)
}

// boxLayout returns where in a box the counts of chunks and messages begin and how many they are, and where the
// slots for packets begin and end; see Box of group.cu.
func (s groupSizes) boxLayout(ranks, lanes uint64) (counts, count, packets, end uint64) {
	counts = ranks * lanes * (groupSlots + groupOfferRoom) * 16
	count = 4*ranks*lanes + 5*ranks
	packets = divideUp(counts+(count+devicecode.MaxBlocks+1)*8, line) * line
	return counts, count, packets, packets + ranks*lanes*groupSlots*s.packetSlot
}

// groupKernels returns group.cu for ranks of one host or of several, the packets of their link, and the bytes of a
// slot for packets.
func groupKernels(hosts bool, packet string, slot uint64) unit {
	u, on := groupFile, "ONE_HOST"
	if hosts {
		on = "SEVERAL_HOSTS"
	}
	u.options.Defines = []string{on, "ONLY_" + packet, fmt.Sprintf("PACKET_SLOT=%d", slot)}
	return u
}

// loadTogether loads what all groups need, unless the ranks have it. The caller holds the runner's mu.
// Collective: a rank may call it in Launch while others call LoadGroups.
func (g *groups) loadTogether(ctx context.Context, r *Runner) error {
	if !g.counts { // once, though it may fail
		if err := r.comm.MatchCall("the first group of sends and receives, which all ranks launch unless LoadGroups was called" + r.name); err != nil {
			return err
		}
		g.counts = true
	}
	return r.prepareTogether(ctx, "prepare groups of sends and receives", "", nil, func(ctx context.Context) error { return g.load(ctx, r) })
}

// packet returns the name of the packets of the runner's link.
func (g *groups) packet(r *Runner) string {
	if r.link == NVLink {
		return "LL128"
	}
	return "LL16"
}

// unit returns group.cu for the runner's hosts and link.
func (g *groups) unit(r *Runner) unit {
	return groupKernels(len(r.comm.Hosts()) > 1, g.packet(r), g.sizes.packetSlot)
}

// kernel returns a kernel of unit. The caller holds the runner's mu. Collective.
func (g *groups) kernel(ctx context.Context, r *Runner, name string, threads int) (launchable, error) {
	if name != "storeMessages" {
		name += g.packet(r)
		if len(r.comm.Hosts()) > 1 {
			name = "hosts" + strings.ToUpper(name[:1]) + name[1:]
		}
	}
	return r.kernelOf(ctx, g.unit(r), name, threads, 0)
}

// load makes the box and loads the kernels, unless the runner has them in its group. The caller holds the runner's
// mu. Collective the first time.
func (g *groups) load(ctx context.Context, r *Runner) (err error) {
	if g.loaded() {
		return nil
	}
	for _, k := range []struct {
		name    string
		threads int
		*launchable
	}{{"blocks", g.sizes.threads, &g.blocks}, {"warps", g.sizes.threads, &g.warps}, {"places", g.sizes.threads, &g.places}, {"storeMessages", storeThreads, &g.stores}} {
		if *k.launchable, err = g.kernel(ctx, r, k.name, k.threads); err != nil {
			return err
		}
	}
	if len(r.comm.Hosts()) > 1 {
		b, err := g.reachHosts(ctx, r)
		if err != nil {
			return err
		}
		g.hosts = []any{b}
	}
	near := uint64(r.group.Size)
	all, bytes := g.sizes.boxBytes(near, uint64(r.comm.Size())-near), uint64(loadedMessages*workMessageBytes)
	_, _, _, end := g.sizes.boxLayout(near, g.lanes(r))
	box, err := r.allocateOnce(ctx, forBox, all, end)
	if err != nil {
		return err
	}
	// The table is behind the slots.
	table, err := box.Buffer.Slice(all-bytes, bytes)
	if err != nil {
		return err
	}
	handle := r.group
	handle.Watch.Channel = layout.MessageChannel
	g.handle, g.shared = handle, box.peers()
	g.box, g.tables = box, append([]*gpu.Buffer{table}, g.tables...)
	g.plan = &plan{r: r, first: callKey{kind: inGroups}}
	r.keepPlan(planKey{kind: inGroups}, g.plan, g.print(r))
	r.prepared.made(func() error { return g.leave(r) })
	return nil
}

// leave has groups be loaded anew, where another rank's load failed. Ranks on which it worked may have launched groups
// since, so what these use is closed with the runner.
func (g *groups) leave(r *Runner) (err error) {
	path, box := pathKey{groupsUse, nil, nil}, g.box
	if h := r.hostPaths[path]; h != nil {
		err = h.closeService()
		r.left = append(r.left, h.close)
		delete(r.hostPaths, path)
	}
	r.left = append(r.left, func() error { return errors.Join(box.release(), box.Buffer.Close()) })
	delete(r.memories, box)
	delete(r.own, forBox)
	g.box, g.tables = nil, g.tables[1:]
	return err
}

// sort sorts the messages by their peers and directions.
func (g *Group) sort() {
	all, ranks := &g.runner.groups, g.runner.comm.Size()
	if all.sends == nil {
		all.sends, all.receives, all.near = make([][]*message, ranks), make([][]*message, ranks), slices.Repeat([]int{-1}, ranks)
		for i, rank := range g.runner.comm.HostRanks() {
			all.near[rank] = i
		}
	}
	for i := range g.messages {
		m := &g.messages[i]
		to := all.sends
		if m.receives {
			to = all.receives
		}
		to[m.peer] = append(to[m.peer], m)
	}
}

// sorted is sort, and returns the table.
func (g *Group) sorted() (*groupTable, error) {
	g.sort()
	return g.table()
}

// table makes the work table of a group whose messages are right by themselves. The caller holds the
// runner's mu until the table was launched.
func (g *Group) table() (*groupTable, error) {
	r := g.runner
	ranks, me := r.comm.Size(), r.comm.Rank()
	sends, receives := r.groups.sends, r.groups.receives
	if err := g.matchSelf(sends[me], receives[me]); err != nil {
		return nil, err
	}
	if len(g.messages) > mostOfGroup {
		return nil, r.invalidUse("collective: launch a group", "it has %d messages, more than %d", len(g.messages), mostOfGroup)
	}
	t := &r.groups.work
	t.tasks, t.most, t.busy, t.spared, t.declined = 0, 0, 0, 0, false
	t.arg.Large, t.arg.Piece = r.groups.most(r), r.groups.sizes.piece
	if g.unplaced {
		t.arg.Large = mostMessage
	}
	t.places, t.waits = false, g.waits
	for i := range g.messages {
		t.places = t.places || t.large(r, &g.messages[i])
	}
	t.arg.More = 0
	t.arg.Small, t.arg.SlotBytes, t.arg.Lanes = r.groups.small(r), r.groups.sizes.slot, uint32(r.groups.lanes(r))
	t.arg.LeastLots = r.groups.sizes.leastPacked<<32 | r.groups.sizes.least
	t.arg.Most, t.ofAll = t.arg.Lanes, 0
	if g.ofAll {
		t.arg.Most, t.ofAll = uint32(r.groups.ofAllLanes(r)), 1<<47 // Elements::ofAll of collective.cuh
	}
	if g.blocks > 0 {
		t.arg.Most = uint32(min(uint64(t.arg.Most), max(1, g.blocks*2/3/uint64(max(ranks-1, 1)))))
	}
	t.arg.Storing = uint32(t.storing(r, sends))
	// Each rank begins with another peer.
	for k := 1; k < ranks; k++ {
		if err := t.add(g, 0, (me+k)%ranks, sends[(me+k)%ranks], nil); err != nil {
			return nil, err
		}
	}
	if err := t.add(g, 2, me, sends[me], receives[me]); err != nil {
		return nil, err
	}
	for k := 1; k < ranks; k++ {
		if err := t.add(g, 1, (me+ranks-k)%ranks, receives[(me+ranks-k)%ranks], nil); err != nil {
			return nil, err
		}
	}
	if t.declined {
		// So may its peers, and slots take all lanes.
		t.arg.Storing = t.arg.Most
		t.busy += t.spared
	}
	return t, nil
}

// empty forgets the group that was launched.
func (g *groups) empty() {
	g.work.messages, g.work.pairs = emptied(g.work.messages), g.work.pairs[:0]
	g.work.used = emptied(g.work.used)
	for rank := range g.sends {
		g.sends[rank], g.receives[rank] = emptied(g.sends[rank]), emptied(g.receives[rank])
	}
}

// emptied returns a slice for the next group, which keeps nothing of the last one: not its
// messages, and if they were more than load has room for, not their memory either.
func emptied[T any](s []T) []T {
	if len(s) > loadedMessages {
		return nil
	}
	clear(s)
	return s[:0]
}

// matchSelf returns the error of messages of this rank to itself that do not match.
func (g *Group) matchSelf(sends, receives []*message) error {
	for i, m := range sends {
		if i >= len(receives) {
			return g.runner.invalidUse(m.op(), "the rank does not receive in the same group what it sends to itself")
		}
		if other := receives[i]; m.count != other.count || m.typ != other.typ {
			return g.runner.invalidUse(other.op(), "the rank sends %d %v to itself", m.count, m.typ)
		}
	}
	if len(receives) > len(sends) {
		return g.runner.invalidUse(receives[len(sends)].op(), "the rank does not send in the same group what it receives from itself")
	}
	return nil
}

// add adds the messages of a pair. others are the receives of what this rank sends to itself.
func (t *groupTable) add(g *Group, direction, peer int, messages, others []*message) error {
	r := g.runner
	if len(messages) == 0 {
		return nil
	}
	if len(messages) > mostOfPair {
		return r.invalidUse("collective: launch a group", "it has %d messages with rank %d, more than %d", len(messages), peer, mostOfPair)
	}
	first, lanes, busy, stored := len(t.messages), uint64(1), direction != 1, direction == 0 && t.places
	if first > mostOfGroup { // a receive takes two entries where a message of the group is large
		return r.invalidUse("collective: launch a group", "its messages take more than %d entries of the table", mostOfGroup)
	}
	most, far := uint64(t.arg.Most), uint32(0)
	if near := r.groups.near[peer]; near >= 0 {
		peer = near
	} else {
		most, far = 1, 1
	}
	if others != nil {
		near := uint64(r.group.Size)
		most = r.groups.sizes.keepLanes(r.comm.Size(), othersTasks(near, uint64(r.comm.Size())-near, uint64(t.arg.Lanes)))
		if g.blocks > 0 {
			most = max(1, min(most, g.blocks/3))
		}
		if t.places {
			most = t.keepsBeside(r.multiprocessors(), most)
		}
	}
	for i, m := range messages {
		t.messages = append(t.messages, m.work(t.ofAll))
		stored = stored && t.large(r, m)
		if others != nil {
			t.messages = append(t.messages, others[i].work(t.ofAll))
		}
		if direction == 1 && t.places {
			place := t.place(r, m)
			t.messages = append(t.messages, workMessage{At: place})
			busy = busy || place == 0
			t.declined = t.declined || place == 0 && t.large(r, m)
		}
		least := r.groups.sizes.least
		if m.bytes() <= t.arg.Small {
			least = r.groups.sizes.leastPacked
		}
		lanes = max(lanes, min(divideUp(divideUp(m.bytes(), line), least/line), most))
		t.most = max(t.most, m.bytes())
	}
	t.pairs = append(t.pairs, workPair{
		Where: uint32(lanes-1)<<24 | uint32(first),
		What:  far<<30 | uint32(direction)<<28 | uint32(peer)<<20 | uint32(len(messages)),
	})
	t.tasks += int(lanes)
	if busy {
		t.busy += int(lanes)
	}
	if storing := uint64(t.arg.Storing); stored && lanes > storing {
		t.busy -= int(lanes - storing)
		t.spared += int(lanes - storing)
	}
	return nil
}

// work returns the message for the kernel.
func (m *message) work(ofAll uint64) workMessage {
	w := workMessage{What: ofAll | uint64(m.typ.device())<<40 | m.bytes()}
	if m.count > 0 {
		w.At = m.at()
	}
	return w
}

// launch returns the launch of a table, with at most so many blocks of threads, of a block for each task if so many
// fit. Otherwise messages that are all small go by a warp for each. Tasks that only wait do it in blocks of others.
func (g *groups) launch(r *Runner, t *groupTable, k launchable, most, threads int) (l launch) {
	if most := mostTasksOf(r.comm.Size()); t.tasks > most {
		return launch{err: fmt.Errorf("%d tasks are more than %d", t.tasks, most)}
	}
	if t.tasks == 0 {
		return launch{}
	}
	t.arg.Pairs = uint32(len(t.pairs))
	clear(t.arg.Pair[copy(t.arg.Pair[:], t.pairs):])
	switch {
	case len(t.pairs) > pairsInTable:
		inFront := packed(t.pairs)
		t.arg.More, l.before, l.err = g.store(r, append(inFront, t.messages...))
		t.arg.More += gpu.Ptr(len(inFront) * workMessageBytes)
	case len(t.messages) > inTable:
		t.arg.More, l.before, l.err = g.store(r, t.messages)
	default:
		clear(t.arg.Messages[copy(t.arg.Messages[:], t.messages):])
	}
	blocks, limit := 0, min(most, k.fit)
	small := t.most <= min(g.sizes.leastPacked, t.arg.Small)
	if t.places {
		k = g.places
		blocks = blocksFor(max(t.busy, int(divideUp(uint64(t.tasks), 8))), min(most, k.fit))
	} else if small && t.tasks > limit {
		k = g.warps
		threads = min(threads, 32*(t.tasks+1)) // a warp besides, which waits until the peers have called for what is sent
		blocks = int(min(divideUp(uint64(t.tasks), uint64(threads/32)), uint64(k.fit)))
	} else {
		blocks = blocksFor(t.tasks, limit)
		if small {
			// A thread for 8 bytes, and a warp besides, which tells the peers what is received.
			threads = min(threads, max(64, int(divideUp(t.most, 8*32))*32)+32)
		}
	}
	l.kernel, l.shape, l.args = k.kernel, gpu.Blocks(blocks, threads), append([]any{g.handle, g.shared, t.arg}, g.hosts...)
	l.shape.Overlap = !t.waits && r.comm.Internal().Sharers() == 1
	return l
}

// blocksFor returns how many blocks of at most so many take the same number of tasks each.
func blocksFor(tasks, most int) int {
	return int(divideUp(uint64(tasks), divideUp(uint64(tasks), uint64(most))))
}

// packed returns pairs as the kernel has them in front of messages, two to each.
func packed(pairs []workPair) []workMessage {
	all := make([]workMessage, divideUp(uint64(len(pairs)), 2))
	for i, p := range pairs {
		word := uint64(p.What)<<32 | uint64(p.Where)
		if i%2 == 0 {
			all[i/2].At = gpu.Ptr(word)
		} else {
			all[i/2].What = word
		}
	}
	return all
}

// store returns the launches of kernels that write messages to device memory, and where: in the same for
// all groups, as their kernels follow each other. It allocates only for more messages than any
// group had before, load's included.
func (g *groups) store(r *Runner, messages []workMessage) (gpu.Ptr, []launch, error) {
	table := g.tables[len(g.tables)-1]
	if bytes := uint64(len(messages)) * workMessageBytes; bytes > table.Size() {
		var err error
		if table, err = r.comm.Device().Alloc(1 << bits.Len64(bytes-1)); err != nil {
			return 0, nil, err
		}
		g.tables = append(g.tables, table)
	}
	var some struct {
		To              gpu.Ptr
		Count, Reserved uint32
		Messages        [inStore]workMessage
	}
	var stores []launch
	for first := 0; first < len(messages); first += inStore {
		some.To = table.Ptr() + gpu.Ptr(first*workMessageBytes)
		some.Count = uint32(copy(some.Messages[:], messages[first:]))
		stores = append(stores, launch{kernel: g.stores.kernel, shape: gpu.Blocks(1, storeThreads), args: []any{some}})
	}
	return table.Ptr(), stores, nil
}

// join has a stream wait for what is queued on others.
func (g *groups) join(s *gpu.Stream, others []*gpu.Stream) (err error) {
	if len(others) > 0 && g.event == nil {
		if g.event, err = s.Device().NewEvent(); err != nil {
			return err
		}
	}
	for _, other := range others {
		if err := errors.Join(other.Record(g.event), s.Wait(g.event)); err != nil {
			return err
		}
	}
	return nil
}

// part has other streams wait for what is queued on one.
func (g *groups) part(s *gpu.Stream, others []*gpu.Stream) error {
	if len(others) == 0 {
		return nil
	}
	if err := s.Record(g.event); err != nil {
		return err
	}
	for _, other := range others {
		if err := other.Wait(g.event); err != nil {
			return err
		}
	}
	return nil
}

// release releases everything.
func (g *groups) release() error {
	errs := []error{g.event.Close()}
	for _, t := range g.tables {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}

// retired returns what is left of g when the runner has left its group: the tables of messages that no
// peer reaches, whose addresses graphs hold.
func (g *groups) retired() groups {
	left := groups{sizes: g.sizes, event: g.event, tables: g.tables}
	if g.loaded() {
		left.tables = g.tables[1:]
	}
	return left
}

// print returns what all launches have in common.
func (g *groups) print(r *Runner) fingerprint {
	return printOf(slices.Concat(g.hosts, []any{g.handle, g.shared, g.blocks, g.warps, g.places, g.stores, g.sizes, g.lanes(r), g.small(r), r.comm.HostRanks()})...)
}
