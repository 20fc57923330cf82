package communicator

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/wire"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// identity is what determines which ranks map each other's memory.
type identity struct {
	host    string   `wire:"255"` // of hostid.MaxSize at most
	device  [16]byte // UUID
	allowed registeredmem.Transports
	token   uint64 // random; rank 0's is the communicator's
	clock   string `wire:"320"` // of the host, or "" if the rank records no timeline
	process process
}

var identityWire = wire.For[identity]()

// explore determines how many ranks share this rank's device, which ranks map each
// other's memory, and the transport to each peer. If failed is not nil, this rank
// has no communicator. Collective.
func (c *Communicator) explore(ctx context.Context, k *call, failed error) error {
	var mine identity
	if failed == nil {
		mine = identity{host: c.registry.Host(), device: c.dev.Info().UUID, allowed: c.options.Transports, token: rand.Uint64(), process: thisProcess()}
		if c.options.Trace != "" {
			mine.clock = hostClock(mine.host)
		}
	}
	identities, err := collectAll(ctx, k, identityWire, &mine, failed)
	if err != nil {
		return err
	}
	c.countSharers(identities)
	c.findBeside(identities)
	maps, err := k.exchangeMaps(ctx, identities)
	if err != nil {
		return err
	}
	c.hosts = cliques(maps)
	if err := c.shareBoard(ctx, k, identities); err != nil {
		return err
	}
	if err := c.traceTogether(ctx, k, identities); err != nil {
		return err
	}
	return c.chooseTransports(ctx, k, identities, maps)
}

// countSharers counts the ranks that use this rank's device, also in containers that are not
// known for one host.
func (c *Communicator) countSharers(identities []identity) {
	me := identities[c.Rank()]
	for _, other := range identities {
		if other.device == me.device {
			c.sharers++
		}
	}
}

// exchangeMaps returns which ranks can map each other's memory: maps[a][b] is not 0
// if a can map b's and b can map a's.
func (k *call) exchangeMaps(ctx context.Context, identities []identity) ([][]byte, error) {
	c := k.c
	mine := make([]byte, c.Size())
	me := identities[c.Rank()]
	for rank, peer := range identities {
		if rank == c.Rank() || me.allowed.Has(registeredmem.CudaIPC) && peer.host == me.host && c.dev.CanAccess(peer.device) {
			mine[rank] = 1
		}
	}
	maps, err := k.collect(ctx, mine, nil)
	if err != nil {
		return nil, err
	}
	for rank, row := range maps {
		if len(row) != c.Size() {
			return nil, k.errorf(mscclgo.ErrRemote, rank, "its list of ranks that it can map has %d entries, the group has %d ranks", len(row), c.Size())
		}
	}
	for a := range maps {
		for b := range maps[:a] {
			both := maps[a][b] & maps[b][a]
			maps[a][b], maps[b][a] = both, both
		}
	}
	return maps, nil
}

// cliques divides the ranks into sets in which all map each other's memory. Each
// rank is in the first set that it fits.
func cliques(maps [][]byte) [][]int {
	var sets [][]int
ranks:
	for rank := range maps {
	sets:
		for i, set := range sets {
			for _, other := range set {
				if maps[rank][other] == 0 {
					continue sets
				}
			}
			sets[i] = append(set, rank)
			continue ranks
		}
		sets = append(sets, []int{rank})
	}
	return sets
}

// Hosts returns the ranks in sets in which all map each other's memory. Kernels reach
// the ranks of their set by [Communicator.HostGroup] and memory channels, and other
// ranks by port channels. A set is the ranks of a host, unless Options.Transports or
// the devices do not allow it. The sets and the ranks in them are in ascending
// order, the same on all ranks.
func (c *Communicator) Hosts() [][]int {
	all := make([][]int, len(c.hosts))
	for i, ranks := range c.hosts {
		all[i] = slices.Clone(ranks)
	}
	return all
}

// HostRanks returns the set of [Communicator.Hosts] that holds this rank.
func (c *Communicator) HostRanks() []int { return slices.Clone(c.hostRanks()) }

// hostRanks is HostRanks without a copy.
func (c *Communicator) hostRanks() []int {
	i := slices.IndexFunc(c.hosts, func(ranks []int) bool { return slices.Contains(ranks, c.Rank()) })
	return c.hosts[i]
}
