package collective

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// hostsOf returns hosts of so many ranks each.
func hostsOf(sizes ...int) (hosts [][]int) {
	first := 0
	for _, n := range sizes {
		ranks := make([]int, n)
		for i := range ranks {
			ranks[i] = first + i
		}
		hosts, first = append(hosts, ranks), first+n
	}
	return hosts
}

// groupMemory returns the bytes of a slot and of a post by default, and what the memory of groups takes at
// most on a rank of hosts.
func groupMemory(hosts [][]int) (slot, post, all uint64) {
	ranks := uint64(0)
	for _, host := range hosts {
		ranks += uint64(len(host))
	}
	box := largestBox(hosts, int(ranks))
	slot = defaultGroupSizes.slot
	for _, host := range hosts {
		slot = min(slot, defaultGroupSizes.fitting(uint64(len(host)), ranks-uint64(len(host))).slot)
	}
	if len(hosts) == 1 {
		return slot, 0, box
	}
	words := 2 * 8 * ranks
	post = min(postOf(ranks, defaultScratch, farGroups, words+box), defaultGroupSizes.post)
	return slot, post, box + 2*ranks*postsOfPair*post + words
}

// small is what else calls of ranks on several hosts take at most: tables and counts, and the ends of boxes, of
// which a GPU has 2 MiB each, handles, and the flags of windows.
const small = 17 * 2 << 20

// TestDefaultMemory has communicators of all sizes, on one host and on several. Few ranks of one host have slots
// of the sizes that were measured, and others none that take more than there is room for.
func TestDefaultMemory(t *testing.T) {
	shown := []int{2, 8, 64, 256}
	for ranks := 1; ranks <= devicecode.MaxRanks; ranks++ {
		sets := [][][]int{hostsOf(ranks)}
		for near := 1; near < ranks; near++ {
			sets = append(sets, hostsOf(near, ranks-near))
		}
		sets = append(sets, hostsOf(slices.Repeat([]int{1}, ranks)...))
		if ranks%8 == 0 {
			sets = append(sets, hostsOf(slices.Repeat([]int{8}, ranks/8)...))
		}
		for _, hosts := range sets {
			slot, post, all := groupMemory(hosts)
			name := fmt.Sprintf("groups of %d ranks on %d hosts, %d on the first", ranks, len(hosts), len(hosts[0]))
			if slices.Contains(shown, ranks) && (len(hosts) != 2 || len(hosts[0]) == ranks/2) {
				t.Logf("%s: slots of %d bytes, posts of %d, %.1f MiB", name, slot, post, float64(all)/(1<<20))
			}
			few, most := ranks <= fewRanks && len(hosts) == 1, uint64(mostMemory)
			if len(hosts) > 1 {
				most = farGroups
			}
			if few && slot != 64<<10 || !few && all > most {
				t.Errorf("%s: slots of %d bytes, posts of %d, %d bytes", name, slot, post, all)
			}
			if slot < 16<<10 || len(hosts) > 1 && post < 4<<10 {
				t.Errorf("%s: slots of %d bytes and posts of %d are small", name, slot, post)
			}
		}
		if all := 2*defaultScratch + farRoutes + farGroups + small; all > 256<<20 {
			t.Errorf("the calls of %d ranks on several hosts take %d bytes", ranks, all)
		}
	}
}

// TestAskedScratch has posts of any number of ranks follow a scratch that was asked for.
func TestAskedScratch(t *testing.T) {
	for _, c := range []struct{ ranks, scratch, want uint64 }{
		{2, 64 << 10, 8 << 10}, {8, 256 << 20, 1 << 20}, {16, 256 << 20, 1 << 20}, {256, 256 << 20, 256 << 10}, {256, 8 << 20, 8 << 10},
		// Pieces of less would be too many.
		{2, 4 << 10, 4 << 10}, {32, 4 << 10, 4 << 10}, {256, 1 << 20, 4 << 10},
	} {
		if got := postOf(c.ranks, c.scratch, farGroups, 1<<20); got != c.want {
			t.Errorf("%d ranks, a scratch of %d bytes: posts of %d, want %d", c.ranks, c.scratch, got, c.want)
		}
	}
}

// TestFittedGroups plays schedules with the slots, the posts and the one lane of the largest groups, and
// compares what was allocated with what was counted.
func TestFittedGroups(t *testing.T) {
	for _, hosts := range [][]int{{0, 0, 0}, {0, 0, 1}} {
		var sizes groupSizes
		if slices.Max(hosts) == 0 {
			sizes = defaultGroupSizes.fitting(devicecode.MaxRanks, 0)
		} else {
			all := hostsOf(devicecode.MaxRanks/2, devicecode.MaxRanks/2)
			sizes = defaultGroupSizes.fitting(devicecode.MaxRanks/2, devicecode.MaxRanks/2)
			_, sizes.post, _ = groupMemory(all)
		}
		sizes.lanes = 1
		t.Run(fmt.Sprint(hosts), func(t *testing.T) {
			runGroupsOnHosts(t, hosts, sizes, "other", func(m *groupMember) error {
				if err := m.runner.LoadGroups(m.ctx); err != nil {
					return err
				}
				near := uint64(m.runner.group.Size)
				if got, want := m.runner.groups.box.Buffer.Size(), sizes.boxBytes(near, 3-near); got != want {
					return fmt.Errorf("the box has %d bytes, want %d", got, want)
				}
				if far := m.runner.hostPaths[pathKey{groupsUse, nil, nil}]; far != nil {
					got, want := far.buffers[postsOutbox].Size()+far.buffers[postsInbox].Size(), 2*3*postsOfPair*sizes.post
					if got != want {
						return fmt.Errorf("the posts have %d bytes, want %d", got, want)
					}
				}
				s := newSchedule(rand.New(rand.NewPCG(4, 3)), 3, 60, []uint64{0, 600, 50_000, 300_000})
				return m.play(s, 4, []*gpu.Stream{m.stream})
			})
		})
	}
}

// TestRouteSlot bounds the boxes of routes by the scratch, but for slots of the least size.
func TestRouteSlot(t *testing.T) {
	for _, room := range []uint64{1, 4 << 10, 1 << 20, defaultScratch, 1 << 40} {
		for _, others := range []uint64{0, 1, 2, 7, 8, 9, 255, 1249} {
			slot := routeSlot(room, others)
			if slot%line != 0 || slot < line || slot > mostRouteSlot {
				t.Errorf("slots of %d bytes of %d for %d other hosts", slot, room, others)
			}
			if all := 2 * routeSlots * others * slot; all > room && slot > line {
				t.Errorf("boxes of %d bytes of %d for %d other hosts", all, room, others)
			}
		}
	}
	if slot := routeSlot(defaultScratch, 1); slot != mostRouteSlot {
		t.Errorf("slots of %d bytes for another host by default", slot)
	}
}
