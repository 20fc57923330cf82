package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// Two ranks of one process add up their numbers.
func ExampleLocal() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := communicator.Local(ctx, 2, "emu", func(ctx context.Context, comm *communicator.Communicator) error {
		mine := []byte{byte(comm.Rank() + 20)}
		all, err := comm.AllGather(ctx, mine)
		if err == nil && comm.Rank() == 0 {
			fmt.Println(comm.Device(), all)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// emu:0 [[20] [21]]
	// <nil>
}

// TestLocal runs ranks on devices by name, closes these, and returns what ranks fail by.
func TestLocal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shared := testdev.Name(t, 0)
	var mu sync.Mutex
	devices := map[*gpu.Device]bool{}
	err := communicator.Local(ctx, 3, shared, func(ctx context.Context, comm *communicator.Communicator) error {
		mu.Lock()
		defer mu.Unlock()
		devices[comm.Device()] = true
		if comm.Size() != 3 || comm.Device().String() != shared {
			return fmt.Errorf("one of %d ranks is on %v", comm.Size(), comm.Device())
		}
		return nil
	})
	if err != nil || len(devices) != 3 {
		t.Errorf("%d devices were used: %v", len(devices), err)
	}
	for d := range devices {
		_, err := d.NewStream()
		testerr.Expect(t, err, mscclgo.ErrInvalid, "closed")
	}
	spoilt := errors.New("spoilt")
	err = communicator.Local(ctx, 2, shared, func(ctx context.Context, comm *communicator.Communicator) error {
		if comm.Rank() == 1 {
			return spoilt
		}
		return comm.Barrier(ctx)
	})
	if !errors.Is(err, spoilt) || !strings.Contains(err.Error(), "rank 1: spoilt") {
		t.Errorf("a rank that fails: %v", err)
	}
	never := func(context.Context, *communicator.Communicator) error { return errors.New("it was called") }
	testerr.Expect(t, communicator.Local(ctx, 0, shared, never), mscclgo.ErrInvalid, "0 ranks")
	testerr.Expect(t, communicator.Local(ctx, 2, "abacus", never), mscclgo.ErrInvalid, "abacus")
	testerr.Expect(t, communicator.Local(ctx, 2, "emu:99999", never), mscclgo.ErrInvalid, "99999")
}

// TestNewStream: a stream of a communicator tells of waits that failed, once, and another one
// does not.
func TestNewStream(t *testing.T) {
	comms := groupWith(t, []communicator.Options{{Timeout: time.Second}, {Timeout: time.Hour}})
	all := workers(t, comms)
	stream, err := comms[0].NewStream()
	testerr.Check(t, err)
	defer stream.Close()
	if err := stream.Synchronize(t.Context()); err != nil {
		t.Errorf("a stream without work: %v", err)
	}
	each(t, 2, func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 64), communicator.MemoryChannelOptions{})
		if err != nil || rank != 0 {
			return err
		}
		await, err := all[0].module.Kernel("await")
		if err != nil {
			return err
		}
		results, err := comms[0].Device().Alloc(4)
		if err != nil {
			return err
		}
		t.Cleanup(func() { results.Close() })
		return await.Launch(stream, gpu.Blocks(1, 1), channels.HandleOf(0, 1), results)
	})
	for what, err := range map[string]error{
		"Stream.Synchronize":       stream.Synchronize(t.Context()),
		"Communicator.Synchronize": comms[0].Synchronize(t.Context(), stream),
	} {
		testerr.Expect(t, err, mscclgo.ErrTimeout, "rank 0, peer 1")
		if told := strings.Count(fmt.Sprint(err), "device wait"); told != 1 {
			t.Errorf("%s tells %d times of the wait: %v", what, told, err)
		}
	}
	if err := all[0].stream.Synchronize(t.Context()); err != nil {
		t.Errorf("another stream: %v", err)
	}
	closed := group(t, 1, communicator.Options{})[0]
	testerr.Check(t, closed.Close())
	_, err = closed.NewStream()
	testerr.Expect(t, err, mscclgo.ErrInvalid, "new stream", "closed")
}

// TestChannelSets has kernels take channels by peer and block.
func TestChannelSets(t *testing.T) {
	const ranks, blocks, bytes = 3, 2, 16
	testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
		module := testerr.Must(devicecode.Load(ctx, comm.Device(), "communicator_test.cu", source, devicecode.Options{}))(t)
		defer module.Close()
		stream := testerr.Must(comm.NewStream())(t)
		defer stream.Close()
		values := make([]byte, ranks*blocks*bytes)
		for i := range blocks * bytes {
			values[comm.Rank()*blocks*bytes+i] = byte(comm.Rank()*blocks*bytes + i)
		}
		buffer := testerr.Must(gpu.Upload(comm.Device(), values))(t)
		defer buffer.Close()
		channels := testerr.Must(comm.MemoryChannels(ctx, buffer, communicator.MemoryChannelOptions{PerPeer: blocks}))(t)
		defer channels.Close()
		gather := testerr.Must(module.Kernel("gatherBySet"))(t)
		testerr.Check(t, gather.Launch(stream, gpu.Blocks(blocks, 32), channels.Set(), uint64(bytes)))
		testerr.Check(t, errors.Join(stream.Synchronize(ctx), gpu.CopyOut(values, buffer), comm.Barrier(ctx)))
		want := make([]byte, len(values))
		for i := range want {
			want[i] = byte(i)
		}
		testcmp.Equal(t, "what was gathered", values, want)

		service := testerr.Must(comm.ProxyService(ctx, proxyservice.ServiceOptions{}))(t)
		defer service.Close()
		inbox := testerr.Must(comm.Device().Alloc(uint64(len(values))))(t)
		defer inbox.Close()
		// Rank 0 sends to rank 2, and rank 1 has no part: a set of others is counted from 0.
		peers := [][]int{{2}, {}, {0}}[comm.Rank()]
		ports := testerr.Must(comm.PortChannels(ctx, service, buffer, communicator.PortChannelOptions{Inbox: inbox, Peers: peers}))(t)
		defer ports.Close()
		set := ports.Set()
		if set.Internal().Size != uint32(len(peers)) || set.Internal().Rank != set.Internal().Size || (set.Internal().Handles == 0) != (comm.Rank() == 1) {
			return fmt.Errorf("the set is %+v", set)
		}
		send := testerr.Must(module.Kernel("sendBySet"))(t)
		const nobody = 9
		to, from := uint32(nobody), uint32(nobody)
		switch comm.Rank() {
		case 0:
			to = 0
		case 2:
			from = 0
		}
		testerr.Check(t, send.Launch(stream, gpu.Blocks(1, 1), set, to, from, uint64(len(values))))
		testerr.Check(t, stream.Synchronize(ctx))
		if comm.Rank() == 2 {
			testerr.Check(t, gpu.CopyOut(values, inbox))
			testcmp.Equal(t, "what was sent", values, want)
		}
		return comm.Barrier(ctx)
	})
}

// TestChannelSetIndex: an index outside a set fails the group, by name.
func TestChannelSetIndex(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	if comms[0].Device().Info().Arch != devicecode.ArchEmu {
		t.Skip("a check that fails ends the use of a GPU by this process")
	}
	all := workers(t, comms)
	each(t, 2, func(rank int) error {
		channels, err := comms[rank].MemoryChannels(t.Context(), upload(t, comms[rank].Device(), 0, 128), communicator.MemoryChannelOptions{})
		if err != nil || rank != 0 {
			return err
		}
		gather, err := all[0].module.Kernel("gatherBySet")
		if err != nil {
			return err
		}
		return gather.Launch(all[0].stream, gpu.Blocks(2, 1), channels.Set(), uint64(16))
	})
	err := comms[0].Synchronize(t.Context(), all[0].stream)
	testerr.Expect(t, err, mscclgo.ErrInvalid, "block (1,0,0), thread (0,0,0): channel 1 to peer 1 of a set, which has 1 to each of 2 peers")
}
