package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// TestManyPipes has four pipes by default between rank 0 and each of 31 others, and round a ring. Slots are
// as small on all ranks as rank 0 needs, and a message of some slots passes along the ring.
func TestManyPipes(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("so many ranks that wait for each other do not fit on GPUs")
	}
	const n = 32
	for name, want := range map[string]uint64{"mapped": 64 << 10, "ports": 32 << 10} {
		t.Run(name, func(t *testing.T) {
			testgroup.Run(t, n, communicator.Options{}, func(ctx context.Context, c *communicator.Communicator) error {
				rank := c.Rank()
				o := communicator.PipeOptions{PerPeer: 4, To: []int{(rank + 1) % n}, From: []int{(rank + n - 1) % n}}
				for peer := range n {
					if (rank == 0) != (peer == 0) && peer != o.To[0] {
						o.To = append(o.To, peer)
					}
					if (rank == 0) != (peer == 0) && peer != o.From[0] {
						o.From = append(o.From, peer)
					}
				}
				if name == "ports" {
					o.Service = testerr.Must(c.ProxyService(ctx, proxyservice.ServiceOptions{}))(t)
					o.Ports = true
				}
				return alongRing(ctx, c, o, want)
			})
		})
	}
}

// alongRing makes pipes, which must have slots of so many bytes, and passes a message to the first of To.
func alongRing(ctx context.Context, c *communicator.Communicator, o communicator.PipeOptions, slot uint64) error {
	const most, length = 64 << 20, 200_001
	need, err := c.PipeBytes(o)
	if err != nil {
		return err
	}
	if need > most {
		return fmt.Errorf("the ends need %d bytes, more than %d", need, most)
	}
	if o.Pool, err = c.Device().Alloc(need); err != nil { // which has to be enough
		return err
	}
	p, err := c.Pipes(ctx, o)
	if err != nil {
		return err
	}
	if got := p.From(3, o.From[0]).Handle().SlotBytes; got != slot {
		return fmt.Errorf("slots of %d bytes, want %d", got, slot)
	}
	used := uint64(0) // which a rank with fewer ends has less of
	size := pipe.Size{SlotBytes: slot}
	for range o.PerPeer {
		for range o.From {
			used += size.Bytes()
		}
		for range o.To {
			if o.Ports {
				used += size.Bytes()
			} else {
				used += size.ControlBytes()
			}
		}
	}
	if c.Rank() == 0 && used != need {
		return fmt.Errorf("the ends take %d bytes, and the pool has %d", used, need)
	}
	w, err := newWorker(ctx, c)
	if err != nil {
		return err
	}
	data, err := gpu.Upload(c.Device(), append(bytes.Repeat([]byte{byte(c.Rank() + 1)}, length), make([]byte, length)...))
	if err != nil {
		return err
	}
	if err := w.run(ctx, "passOn", 32, p.Set(), data, uint64(length)); err != nil {
		return err
	}
	if err := errors.Join(holds(data, length, byte(o.From[0]+1)), w.close(), data.Close()); err != nil {
		return err
	}
	if o.Service != nil {
		if err := o.Service.Close(); err != nil {
			return err
		}
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	return errors.Join(p.Close(), o.Pool.Close())
}
