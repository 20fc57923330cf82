package collective

import (
	"fmt"

	"github.com/mscclgo/mscclgo/internal/layout"
)

// packets goes through inboxes in the communicator's scratch, in words that carry their own flag.
type packets struct {
	traits
	payload uint64 // bytes of data in a packet
	split   split
}

// The payloads of packets; see packet.cuh.
const (
	payloadLL8   = 4
	payloadLL16  = 8
	payloadLL128 = 480
)

// split is how much of a part an inbox of packets holds.
type split int

const (
	whole      split = iota
	twoShards        // of the ranks' number
	relayShare       // of those but the root
)

// packet returns an algorithm of packets, and its kernel, of a name.
func packet(name string, payload uint64, s split) *packets {
	return &packets{traits{name: name, kernel: name, warps: payload == payloadLL128}, payload, s}
}

// relayedPackets is a broadcast by ranks that pass on the packets which the root gives them.
var relayedPackets = func() *packets {
	a := packet("relayedLL128", payloadLL128, relayShare)
	a.unit = relayed.unit
	return a
}()

// withPackets returns the algorithms with packets that all collectives but the all-reduce share, and others.
func withPackets(others ...algorithm) []algorithm {
	return append([]algorithm{
		packet("LL8", payloadLL8, whole), packet("LL16", payloadLL16, whole), packet("LL128", payloadLL128, whole),
	}, others...)
}

// inbox returns how many packets a call puts into an inbox.
func (a *packets) inbox(part, ranks uint64) uint64 {
	n := divideUp(part, a.payload)
	switch a.split {
	case twoShards:
		return 2 * divideUp(n, ranks)
	case relayShare:
		return divideUp(n, max(ranks-1, 1))
	}
	return n
}

// capacity returns the packets of a payload that an inbox holds.
func (r *Runner) capacity(payload uint64) uint64 {
	const packet = 512 // bytes of an LL128 packet
	room := r.group.ScratchSize / 4 / packet * packet
	size := 2 * payload
	if payload == payloadLL128 {
		room, size = 3*room, packet
	}
	return room / 2 / size / uint64(max(r.comm.Size()-1, 1))
}

// held reports whether the inboxes hold a call's packets at once.
func (a *packets) held(r *Runner, c *Call) bool {
	return a.inbox(c.part(), uint64(r.comm.Size())) <= r.capacity(a.payload)
}

func (a *packets) fits(r *Runner, c *Call) error {
	if a.payload == payloadLL128 && !r.lines {
		return fmt.Errorf("%s needs GPUs that NVLink joins, all of one compute capability of 7.0 or more: elsewhere 128 bytes may arrive in parts; take an algorithm with other packets, such as LL16", a.name)
	}
	if !a.held(r, c) {
		return fmt.Errorf("%s of %d bytes does not fit into a scratch of %d bytes; ask for more (communicator.Options.Scratch)", a.name, c.part(), r.group.ScratchSize)
	}
	return nil
}

func (a *packets) reach(Kind) reach { return reachNothing }

func (a *packets) piece(r *Runner, c *Call) uint64 {
	if a.held(r, c) {
		return c.part()
	}
	return piecesOf(c.part(), r.capacity(a.payload)*a.payload)
}

func (a *packets) launch(r *Runner, c *Call, k launchable, in, out layout.PeerMemory) launch {
	perThread, work := a.payload, c.part()
	if a.payload == payloadLL128 {
		perThread = payloadLL128 / 32
	}
	if a.split == twoShards {
		work = r.shard(c)
	}
	return r.plain(c, k, c.blocks(work, perThread, k.fit), in, out)
}

// linesChoice is LL128 packets with as many threads as two ranks' links need.
var linesChoice = Choice{Algorithm: "LL128", Blocks: 256, Threads: 512}

// chooseLines returns the choice of a call that reduces no element, between two ranks on NVLink. The
// flags among packets cost less than a copy: on two H100s, with a scratch of 256 MiB, calls of 4M to
// 256M take 1.00 to 1.15 times as long as prepared ones, and through stagings 1.20 to 1.40 times.
func (r *Runner) chooseLines(c *Call) (Choice, bool) {
	if r.link != NVLink || r.comm.Size() != 2 || len(r.comm.Hosts()) > 1 || r.maxBlocks != 0 || c.Kind.Reduces() {
		return Choice{}, false
	}
	a, err := c.Kind.algorithm(linesChoice.Algorithm)
	if err != nil || r.capacity(payloadLL128)*payloadLL128 < r.staging.lines {
		return Choice{}, false
	}
	// An all-to-all goes so in one piece, or through stagings.
	if c.Kind == AllToAll && a.(mapped).piece(r, c) < c.part() {
		return Choice{}, false
	}
	return linesChoice, true
}
