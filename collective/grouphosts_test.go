package collective

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/detector"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// groupsOfHosts are hosts of ranks, even and uneven, in order and not.
var groupsOfHosts = [][]int{{0, 1}, {0, 0, 1}, {0, 1, 2}, {0, 1, 1, 0}, {0, 1, 2, 3}, {0, 0, 0, 1, 2, 2},
	{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1}}

// TestGroupsOnHosts plays random schedules of hundreds of messages, within hosts and between them.
func TestGroupsOnHosts(t *testing.T) {
	testdev.Parallel(t)
	for _, link := range []string{"other", NVLink} {
		runGroupsOnEach(t, groupsOfHosts, tinyGroups, link, func(m *groupMember) error {
			if err := m.runner.LoadGroups(m.ctx); err != nil {
				return err
			}
			ranks := m.comm.Size()
			for seed := range uint64(2) {
				s := newSchedule(rand.New(rand.NewPCG(seed, uint64(ranks))), ranks, testgroup.Messages(300), []uint64{0, 8, 100, 600, 5000, 50_000})
				if err := m.play(s, seed, []*gpu.Stream{m.stream}); err != nil {
					return fmt.Errorf("schedule %d: %w", seed, err)
				}
			}
			return nil
		})
	}
}

// TestGroupsOverEach plays random schedules of hundreds of messages, and one of 1 MiB, among ranks
// that reach each other over one transport that maps no memory, and over all.
func TestGroupsOverEach(t *testing.T) {
	testdev.Parallel(t)
	for name, over := range map[string]registeredmem.Transports{
		"SHM": registeredmem.SHM, "Ethernet": registeredmem.Ethernet, "InfiniBand": registeredmem.InfiniBand, "mixed": 0,
	} {
		for _, ranks := range []int{2, 3, 4, 8} {
			if over == 0 && ranks < 4 || ranks > 4 && detector.Enabled { // which finds no more in more of the same
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", name, ranks), func(t *testing.T) {
				o := testgroup.Mixed(ranks)
				if over != 0 {
					o = testgroup.Over(t, over, ranks)
				}
				testgroup.RunEach(t, o, groupTest(tinyGroups, "other", func(m *groupMember) error {
					if err := m.runner.LoadGroups(m.ctx); err != nil {
						return err
					}
					random := rand.New(rand.NewPCG(9, uint64(ranks)))
					return m.play(newSchedule(random, ranks, testgroup.Messages(300), []uint64{0, 8, 100, 600, 5000, 50_000}, 1<<20), 9, []*gpu.Stream{m.stream})
				}))
			})
		}
	}
}

// TestLargeGroupsOnHosts has messages of several MiB between hosts, in the sizes that users get.
func TestLargeGroupsOnHosts(t *testing.T) {
	runGroupsOnEach(t, [][]int{{0, 1}, {0, 0, 1}, {0, 1, 1, 2}}, defaultGroupSizes, "other", func(m *groupMember) error {
		if err := m.runner.LoadGroups(m.ctx); err != nil {
			return err
		}
		ranks, large := m.comm.Size(), []uint64{16 << 20, 5 << 20}
		if testing.Short() {
			large = large[1:]
		}
		s := newSchedule(rand.New(rand.NewPCG(8, uint64(ranks))), ranks, testgroup.Messages(40), []uint64{100, 100_000, 2 << 20}, large...)
		return m.play(s, 8, []*gpu.Stream{m.stream})
	})
}

// TestGroupTasks compares the tasks of the largest groups, on hosts of all sizes, with what kernels
// have room for.
func TestGroupTasks(t *testing.T) {
	for ranks := 1; ranks <= devicecode.MaxRanks; ranks++ {
		most := mostTasksOf(ranks)
		for near := 1; near <= ranks; near++ {
			lanes := lanesOf(defaultGroupSizes.lanes, uint64(near), uint64(ranks-near))
			others := othersTasks(uint64(near), uint64(ranks-near), lanes)
			keeps := defaultGroupSizes.keepLanes(ranks, others)
			if keeps < 1 || others+keeps > uint64(most) {
				t.Errorf("%d ranks of %d: %d tasks and %d, more than %d", near, ranks, others, keeps, most)
			}
		}
	}
}
