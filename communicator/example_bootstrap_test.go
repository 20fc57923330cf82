package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
)

// office is a bootstrap of a program's own: here goroutines and channels, as MPI
// or an RPC would be. A rank has four methods; the communicator does the rest.
type office struct {
	size int
	gone []chan struct{} // closed when the rank has ended

	mu    sync.Mutex
	boxes map[address]chan []byte
}

// address is where a message goes: messages are told apart by all three.
type address struct {
	from, to int
	tag      uint64
}

func newOffice(size int) *office {
	o := &office{size: size, boxes: map[address]chan []byte{}}
	for range size {
		o.gone = append(o.gone, make(chan struct{}))
	}
	return o
}

func (o *office) box(a address) chan []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.boxes[a] == nil {
		o.boxes[a] = make(chan []byte, 64)
	}
	return o.boxes[a]
}

// clerk is one rank of an office.
type clerk struct {
	*office
	rank int
}

func (c clerk) Rank() int { return c.rank }
func (c clerk) Size() int { return c.size }

func (c clerk) Send(ctx context.Context, peer int, tag uint64, data []byte) error {
	select {
	case c.box(address{c.rank, peer, tag}) <- bytes.Clone(data):
		return nil
	case <-c.gone[peer]:
		return errors.New("the rank has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c clerk) Recv(ctx context.Context, peer int, tag uint64) ([]byte, error) {
	box := c.box(address{peer, c.rank, tag})
	select {
	case data := <-box:
		return data, nil
	case <-c.gone[peer]:
		select {
		case data := <-box: // what the peer sent before it ended
			return data, nil
		default:
			return nil, errors.New("the rank has ended")
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A group over a bootstrap of the program's own.
func ExampleBootstrap() {
	ctx := context.Background()
	o := newOffice(2)
	run := func(rank int) error {
		device, err := gpu.Open(fmt.Sprintf("emu:%d", rank))
		if err != nil {
			return err
		}
		defer device.Close()
		comm, err := communicator.New(ctx, clerk{o, rank}, device, communicator.Options{})
		if err != nil {
			return err
		}
		defer comm.Close()
		names, err := comm.AllGather(ctx, []byte(device.String()))
		if rank == 0 {
			fmt.Printf("%s\n", names)
		}
		return err
	}
	var wg sync.WaitGroup
	for rank := range o.size {
		wg.Go(func() {
			if err := run(rank); err != nil {
				log.Print(err)
			}
		})
	}
	wg.Wait()
	// Output: [emu:0 emu:1]
}
