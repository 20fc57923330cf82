package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo/cmd/mscclgo/internal/show"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// slot is what a rank sends to each other one, in bytes.
const slot = 64 << 10

// Meet has every rank write to the memory of every other one, and check what came. If the
// ranks are on one machine, memory should be mapped. It returns the same on all ranks.
// Collective.
func Meet(ctx context.Context, comm *communicator.Communicator, oneMachine bool) (f Finding, err error) {
	n, rank := comm.Size(), comm.Rank()
	// A slot for each rank, and one to send from.
	b, err := comm.Device().Alloc(uint64(n+1) * slot)
	if err != nil {
		return f, err
	}
	defer b.Close()
	out, err := b.Slice(uint64(n)*slot, slot)
	if err != nil {
		return f, err
	}
	if err := gpu.CopyIn(out, pattern(rank)); err != nil {
		return f, err
	}
	shared, err := comm.Share(ctx, b)
	if err != nil {
		return f, err
	}
	defer shared.Close()
	began := time.Now()
	if err := send(ctx, comm, b, shared); err != nil {
		return f, err
	}
	took := time.Since(began)
	row, err := receive(comm, b)
	if err != nil {
		return f, err
	}
	mine, err := json.Marshal(row)
	if err != nil {
		return f, err
	}
	all, err := comm.AllGather(ctx, mine)
	if err != nil {
		return f, err
	}
	return judge(comm, all, took, oneMachine)
}

func pattern(rank int) []byte {
	p := make([]byte, slot)
	for i := range p {
		p[i] = byte(i*7 + i>>8 + rank*31 + 1)
	}
	return p
}

// send writes to this rank's slot at every other one, and returns when all ranks have.
func send(ctx context.Context, comm *communicator.Communicator, b *gpu.Buffer, shared *communicator.PeerMemory) error {
	n, rank := uint64(comm.Size()), comm.Rank()
	stream, err := comm.Device().NewStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	for peer, m := range shared.Memories {
		if peer == rank {
			continue
		}
		if mapped := m.Buffer(); mapped != nil {
			if err := stream.Copy(mapped, uint64(rank)*slot, b, n*slot, slot); err != nil {
				return err
			}
			continue
		}
		c, err := comm.Connect(ctx, peer, 0)
		if err != nil {
			return err
		}
		defer c.Close() // when all ranks are done
		if err := c.Write(m, uint64(rank)*slot, shared.Memories[rank], n*slot, slot); err != nil {
			return err
		}
		if err := c.Flush(ctx); err != nil {
			return err
		}
	}
	if err := comm.Synchronize(ctx, stream); err != nil {
		return err
	}
	return comm.Barrier(ctx)
}

// row is what a rank received from each.
type row struct {
	Transport []string
	Wrong     []int
}

func receive(comm *communicator.Communicator, b *gpu.Buffer) (row, error) {
	r := row{Transport: make([]string, comm.Size())}
	got := make([]byte, b.Size())
	if err := gpu.CopyOut(got, b); err != nil {
		return r, err
	}
	for peer := range r.Transport {
		if peer == comm.Rank() {
			continue
		}
		t, err := comm.Transport(peer)
		if err != nil {
			return r, err
		}
		r.Transport[peer] = t.String()
		if !slices.Equal(got[peer*slot:(peer+1)*slot], pattern(peer)) {
			r.Wrong = append(r.Wrong, peer)
		}
	}
	return r, nil
}

// judge makes a finding of the rows of all ranks.
func judge(comm *communicator.Communicator, all [][]byte, took time.Duration, oneMachine bool) (Finding, error) {
	pairs := map[string]int{}
	var wrong []string
	for rank, text := range all {
		var r row
		if err := json.Unmarshal(text, &r); err != nil || len(r.Transport) != comm.Size() {
			return Finding{}, fmt.Errorf("rank %d reports %.100q: %w", rank, text, err)
		}
		for peer, t := range r.Transport {
			if peer != rank {
				pairs[t]++
			}
		}
		for _, peer := range r.Wrong {
			wrong = append(wrong, fmt.Sprintf("%d to %d", peer, rank))
		}
	}
	if len(wrong) > 0 {
		return failed("run it again with MSCCLGO_TRANSPORTS set to others", "what ranks wrote did not arrive: %s", strings.Join(wrong, ", ")), nil
	}
	var over []string
	for _, t := range slices.Sorted(maps.Keys(pairs)) {
		over = append(over, fmt.Sprintf("%d by %s", pairs[t], t))
	}
	text := fmt.Sprintf("%d ranks on %s wrote %s to each other, and it arrived (%v); pairs: %s",
		comm.Size(), show.Count(len(comm.Hosts()), "host"), sizeText(slot), took.Round(10*time.Microsecond), strings.Join(over, ", "))
	if oneMachine && len(pairs) > 0 && pairs[registeredmem.CudaIPC.String()] == 0 {
		return warning("unset MSCCLGO_TRANSPORTS; look at peer-access", "%s\nno memory is mapped between ranks of this machine", text), nil
	}
	return ok("%s", text), nil
}
