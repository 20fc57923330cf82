package communicator

import (
	"context"
	"encoding/binary"
	"errors"
	"os"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/hostid"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/internal/timeline"
)

// traceTag is of the messages that compare clocks and carry records. No call of the
// bootstrap's gathers has this number.
const traceTag = 1<<64 - 2

// clockRounds is how often two hosts compare their clocks: the quickest time counts.
const clockRounds = 16

// hostClock identifies the clock of this process: the host's clock since its boot, in the
// process's time namespace.
func hostClock(host string) string {
	namespace, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		namespace = "?"
	}
	clock := host + " " + namespace
	return clock[:min(len(clock), maxClock)]
}

const maxClock = hostid.MaxSize + 64

// traceTogether has all ranks or none record, and compares their hosts' clocks with rank
// 0's. Collective.
func (c *Communicator) traceTogether(ctx context.Context, k *call, identities []identity) error {
	me := identities[c.Rank()]
	for rank, other := range identities {
		if (other.clock == "") != (me.clock == "") {
			return k.errorf(mscclgo.ErrInvalid, rank, "one of the two records a timeline and the other does not; set MSCCLGO_TRACE, or Options.Trace, on all ranks or on none")
		}
	}
	t := c.failure.tracer.Load()
	if t == nil {
		return nil
	}
	t.same = make([]bool, len(identities))
	for rank, other := range identities {
		t.same[rank] = other.clock == identities[0].clock
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	first, err := t.compareClocks(ctx)
	t.mu.Lock()
	t.hosts.First, t.local = first, c.HostRanks()
	t.mu.Unlock()
	return k.agree(ctx, err)
}

// compareClocks returns a sample of this host's clock and rank 0's. All ranks call it.
func (t *tracer) compareClocks(ctx context.Context) (timeline.Sample, error) {
	c := t.c
	if c.Rank() != 0 {
		if t.same[c.Rank()] {
			now := native.Now()
			return timeline.Sample{Local: now, Common: now}, nil
		}
		return t.askClock(ctx)
	}
	now := native.Now()
	for rank := range t.same {
		for range clockRounds {
			if t.same[rank] {
				break
			}
			if _, err := c.boot.Recv(ctx, rank, traceTag); err != nil {
				return timeline.Sample{}, err
			}
			if err := c.boot.Send(ctx, rank, traceTag, binary.LittleEndian.AppendUint64(nil, native.Now())); err != nil {
				return timeline.Sample{}, err
			}
		}
	}
	return timeline.Sample{Local: now, Common: now}, nil
}

// askClock asks rank 0 for the time. Its answer was made while the question and the answer
// travelled.
func (t *tracer) askClock(ctx context.Context) (best timeline.Sample, err error) {
	for i := range clockRounds {
		before := native.Now()
		if err := t.c.boot.Send(ctx, 0, traceTag, nil); err != nil {
			return best, err
		}
		b, err := t.c.boot.Recv(ctx, 0, traceTag)
		if err != nil {
			return best, err
		}
		if len(b) != 8 {
			return best, errors.New("rank 0's time has a wrong length")
		}
		half := (native.Now() - before + 1) / 2
		if i == 0 || half < best.Error {
			best = timeline.Sample{Local: before + half, Common: binary.LittleEndian.Uint64(b), Error: half}
		}
	}
	return best, nil
}
