package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/proxyservice"
)

//go:embed allreduce.cu
var source []byte

// The kernels' names of the types and operations that they are compiled for. ring and
// hier keep partial results as elements, which takes more for fp8 and averages.
var (
	deviceTypes = map[collective.Type]string{
		collective.F32: "float", collective.F16: "__half", collective.BF16: "__nv_bfloat16", collective.F64: "double",
		collective.I32: "int32_t", collective.I64: "int64_t", collective.U8: "uint8_t",
	}
	deviceOps = map[collective.Op]string{
		collective.Sum: "Sum", collective.Prod: "Prod", collective.Max: "Max", collective.Min: "Min",
	}
)

// launch queues an all-reduce.
type launch func(s *gpu.Stream) error

// algorithm makes an all-reduce of the first count elements ready. Collective.
type algorithm func(ctx context.Context, count uint64) (launch, error)

// algorithms are the ways to make one, by the name of -algo. All are collective.
var algorithms = map[string]func(*sample, context.Context) (algorithm, error){
	"auto": (*sample).auto, "oneshot": (*sample).oneShot, "twoshot": (*sample).twoShot, "ring": (*sample).ring, "hier": (*sample).hier,
}

// auto is package collective's, which chooses by the size.
func (s *sample) auto(ctx context.Context) (algorithm, error) {
	runner, err := collective.New(ctx, s.comm, collective.Options{})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() error { return runner.Close(ctx) })
	call := collective.Call{Kind: collective.AllReduce, Type: s.typ, Op: s.op, InPlace: s.inPlace}
	if call.In, err = runner.Share(ctx, s.in); err != nil {
		return nil, err
	}
	if call.Out, err = runner.Share(ctx, s.out); err != nil {
		return nil, err
	}
	return func(ctx context.Context, count uint64) (launch, error) {
		call.Count, call.Choice = count, collective.Choice{}
		if s.blocks != 0 || s.threads != 0 {
			if call.Choice, err = runner.Choose(call); err != nil {
				return nil, err
			}
			call.Blocks, call.Threads = cmp.Or(s.blocks, call.Blocks), cmp.Or(s.threads, call.Threads)
		}
		op, err := runner.Prepare(ctx, call)
		if err != nil {
			return nil, err
		}
		return op.Launch, nil
	}, nil
}

// kernel loads one of ours. Its blocks wait for the peers', so there are no more of
// them than all devices run at once.
func (s *sample) kernel(ctx context.Context, name string) (*gpu.Kernel, gpu.LaunchConfig, error) {
	blocks, threads := cmp.Or(s.blocks, 16), cmp.Or(s.threads, 256)
	t, op := deviceTypes[s.typ], deviceOps[s.op]
	if t == "" || op == "" {
		return nil, gpu.LaunchConfig{}, fmt.Errorf("-algo %s does not reduce %v by %v; -algo auto may", s.algo, s.typ, s.op)
	}
	options := devicecode.Options{Defines: []string{"ELEMENT=" + t, "OPERATION=" + op}}
	module, err := devicecode.Load(ctx, s.comm.Device(), "allreduce.cu", source, options)
	if err != nil {
		return nil, gpu.LaunchConfig{}, err
	}
	kernel, err := module.Kernel(name)
	if err != nil {
		return nil, gpu.LaunchConfig{}, err
	}
	fit, err := s.comm.MaxBlocks(ctx, kernel, threads, 0)
	return kernel, gpu.Blocks(min(blocks, fit), threads), err
}

// words returns the number of the kernels' words that hold count elements.
func (s *sample) words(count uint64) uint64 { return divideUp(count*uint64(s.typ.Size()), wordBytes) }

func (s *sample) oneShot(ctx context.Context) (algorithm, error) {
	kernel, shape, err := s.kernel(ctx, "oneShot")
	if err != nil {
		return nil, err
	}
	rank, ranks, slot := s.comm.Rank(), s.comm.Size(), 2*s.in.Size() // half of a packet is flags
	inbox, err := gpu.Upload(s.comm.Device(), make([]byte, 2*uint64(ranks)*slot))
	if err != nil {
		return nil, err
	}
	peers, err := s.comm.MemoryChannels(ctx, s.in, communicator.MemoryChannelOptions{Inbox: inbox})
	flag := uint32(0)
	return func(_ context.Context, count uint64) (launch, error) {
		return func(stream *gpu.Stream) error {
			flag++
			return kernel.Launch(stream, shape, peers.Handles, rank, ranks, s.in, s.out, slot, s.words(count)*wordBytes, flag)
		}, nil
	}, err
}

func (s *sample) twoShot(ctx context.Context) (algorithm, error) {
	kernel, shape, err := s.kernel(ctx, "twoShot")
	if err != nil {
		return nil, err
	}
	o := communicator.MemoryChannelOptions{PerPeer: shape.Grid.X}
	ins, err := s.comm.MemoryChannels(ctx, s.in, o)
	if err != nil {
		return nil, err
	}
	outs, err := s.comm.MemoryChannels(ctx, s.out, o)
	return func(_ context.Context, count uint64) (launch, error) {
		return func(stream *gpu.Stream) error {
			return kernel.Launch(stream, shape, ins.Handles, outs.Handles, s.comm.Rank(), s.comm.Size(), s.words(count))
		}, nil
	}, err
}

// service moves the data of port channels.
func (s *sample) service(ctx context.Context) (*proxyservice.ProxyService, error) {
	service, err := s.comm.ProxyService(ctx, proxyservice.ServiceOptions{})
	if err == nil {
		s.closers = append(s.closers, service.Close)
	}
	return service, err
}

func (s *sample) ring(ctx context.Context) (algorithm, error) {
	kernel, shape, err := s.kernel(ctx, "ring")
	if err != nil {
		return nil, err
	}
	service, err := s.service(ctx)
	if err != nil {
		return nil, err
	}
	ranks := s.comm.Size()
	inbox, err := s.comm.Device().Alloc(s.in.Size() + uint64(ranks)*wordBytes)
	if err != nil {
		return nil, err
	}
	toInbox, err := s.comm.PortChannels(ctx, service, s.out, communicator.PortChannelOptions{Inbox: inbox})
	if err != nil {
		return nil, err
	}
	toOutput, err := s.comm.PortChannels(ctx, service, s.out, communicator.PortChannelOptions{})
	return func(_ context.Context, count uint64) (launch, error) {
		return func(stream *gpu.Stream) error {
			return kernel.Launch(stream, gpu.Blocks(1, shape.Block.X), toInbox.Handles, toOutput.Handles, s.comm.Rank(), ranks, s.in, s.out, inbox, s.words(count))
		}, nil
	}, err
}

func (s *sample) hier(ctx context.Context) (algorithm, error) {
	local, host, hosts := 0, 0, s.comm.Hosts()
	for h, ranks := range hosts {
		if len(ranks) != len(hosts[0]) {
			return nil, fmt.Errorf("-algo hier needs the same number of ranks on each host, and two hosts have %d and %d; -algo auto takes any", len(hosts[0]), len(ranks))
		}
		for i, rank := range ranks {
			if rank == s.comm.Rank() {
				local, host = i, h
			}
		}
	}
	owners := []int{} // of this rank's shard on the other hosts
	for h, ranks := range hosts {
		if h != host {
			owners = append(owners, ranks[local])
		}
	}
	kernel, shape, err := s.kernel(ctx, "hier")
	if err != nil {
		return nil, err
	}
	service, err := s.service(ctx)
	if err != nil {
		return nil, err
	}
	slot := divideUp(s.in.Size()/wordBytes, uint64(len(hosts[0]))) // words
	inbox, err := s.comm.Device().Alloc(2 * uint64(len(hosts)) * slot * wordBytes)
	if err != nil {
		return nil, err
	}
	across, err := s.comm.PortChannels(ctx, service, inbox, communicator.PortChannelOptions{Peers: owners})
	if err != nil {
		return nil, err
	}
	var handles gpu.Ptr // none on one host
	if across.Handles != nil {
		handles = across.Handles.Ptr()
	}
	ins, err := s.comm.MemoryChannels(ctx, s.in, communicator.MemoryChannelOptions{SameHost: true})
	if err != nil {
		return nil, err
	}
	outs, err := s.comm.MemoryChannels(ctx, s.out, communicator.MemoryChannelOptions{SameHost: true})
	calls := uint32(0)
	return func(_ context.Context, count uint64) (launch, error) {
		return func(stream *gpu.Stream) error {
			calls++
			return kernel.Launch(stream, gpu.Blocks(1, shape.Block.X), ins.Handles, outs.Handles, local, len(hosts[0]),
				handles, host, len(hosts), inbox, slot, s.words(count), calls)
		}, nil
	}, err
}
