package channel_test

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/elements"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// ring returns the options of pipes from each rank to the next.
func ring(comm *communicator.Communicator) communicator.PipeOptions {
	n := comm.Size()
	return communicator.PipeOptions{To: []int{(comm.Rank() + 1) % n}, From: []int{(comm.Rank() + n - 1) % n}}
}

// preload compiles a source before ranks with deadlines need it.
func preload(t *testing.T, name string, source []byte, defines ...string) {
	t.Helper()
	device := testdev.Open(t, 0)
	module, err := devicecode.Load(t.Context(), device, name, source, devicecode.Options{Defines: defines})
	if err == nil {
		err = module.Close()
	}
	testerr.Check(t, err)
}

// loaded returns a kernel of a source, and a word for its result.
func loaded(ctx context.Context, comm *communicator.Communicator, name string, source []byte, kernel string, defines ...string) (*gpu.Kernel, *gpu.Buffer, error) {
	module, err := devicecode.Load(ctx, comm.Device(), name, source, devicecode.Options{Defines: defines})
	if err != nil {
		return nil, nil, err
	}
	k, err := module.Kernel(kernel)
	if err != nil {
		return nil, nil, err
	}
	result, err := gpu.Upload(comm.Device(), make([]uint32, 1))
	return k, result, err
}

// wait waits for a stream, and returns an error unless a kernel's result is done.
func wait(ctx context.Context, stream *gpu.Stream, result *gpu.Buffer) error {
	word := make([]uint32, 1)
	if err := errors.Join(stream.Synchronize(ctx), gpu.CopyOut(word, result)); err != nil {
		return err
	}
	if word[0] != 0 {
		return fmt.Errorf("a call ended as %v", devicecode.WaitResult(word[0]))
	}
	return nil
}

// TestPipeShift has all ranks of a ring send before they receive, and a rank send to itself.
func TestPipeShift(t *testing.T) {
	for _, c := range pipeConfigs {
		if !c.shifts() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			c.shift(t, 3)
			c.shift(t, 1)
		})
	}
}

// shifts reports whether shift is for the configuration: there is room in its slots, blocks make
// the calls, and it is for one rank as well.
func (c pipeConfig) shifts() bool { return c.slots > 1 && !c.warps && !c.mixed }

// shift passes bytes round a ring, or has a rank send to itself by one block what another
// receives.
func (c pipeConfig) shift(t *testing.T, ranks int) {
	t.Helper()
	kernel, blocks, rounds := "shift", 1, 10
	if ranks == 1 {
		kernel, blocks = "toItself", 2
	}
	length := uint64((c.slots-1)*c.slotBytes - 3)
	preload(t, "pipe_test.cu", pipeSource)
	c.run(t, ranks, func(ctx context.Context, comm *communicator.Communicator) error {
		k, result, err := loaded(ctx, comm, "pipe_test.cu", pipeSource, kernel)
		if err != nil {
			return err
		}
		stream, err := comm.NewStream()
		if err != nil {
			return err
		}
		memory, err := gpu.Upload(comm.Device(), append(bytes.Repeat([]byte{byte(comm.Rank())}, int(length)), bytes.Repeat([]byte{77}, int(length))...))
		if err != nil {
			return err
		}
		out, err1 := memory.Slice(0, length)
		in, err2 := memory.Slice(length, length)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		o := ring(comm)
		if c.buffered {
			o.Buffer = memory
		}
		p, end, err := c.pipes(ctx, comm, o)
		if err != nil {
			return err
		}
		args, last := []any{p.Set(), out, in, length, result}, byte(0)
		if ranks > 1 {
			args, last = []any{p.Set(), out, in, length, o.From[0], rounds, result}, byte(o.From[0]+rounds-1)
		}
		if err := k.Launch(stream, gpu.Blocks(blocks, 64), args...); err != nil {
			return err
		}
		got := make([]byte, length)
		if err := errors.Join(wait(ctx, stream, result), gpu.CopyOut(got, in)); err != nil {
			return err
		}
		if bytes.Count(got, []byte{last}) != len(got) {
			return fmt.Errorf("rank %d: %v arrived, want %d", comm.Rank(), got, last)
		}
		return end()
	})
}

//go:embed pipe_types_test.cu
var typesSource []byte

// TestPipeTypes reduces all types in a ring, in a short run most, each operation for one at least, with lengths
// that are no multiple of anything. Elements of 8 bits and averages would come out wrong if
// partial results were rounded to elements.
func TestPipeTypes(t *testing.T) {
	names := map[collective.Type]string{
		collective.F32: "float", collective.F64: "double", collective.F16: "__half", collective.BF16: "__nv_bfloat16",
		collective.F8E4M3: "__nv_fp8_e4m3", collective.F8E5M2: "__nv_fp8_e5m2",
		collective.I32: "int32_t", collective.I64: "int64_t", collective.U8: "uint8_t",
	}
	operations := map[collective.Type][]collective.Op{
		collective.F32: {collective.Sum}, collective.F64: {collective.Avg}, collective.F16: {collective.Max, collective.Avg}, collective.BF16: {collective.Sum},
		collective.F8E4M3: {collective.Sum}, collective.F8E5M2: {collective.Prod},
		collective.I32: {collective.Avg}, collective.I64: {collective.Min}, collective.U8: {collective.Avg},
	}
	macros := map[collective.Op]string{collective.Sum: "Sum", collective.Prod: "Prod", collective.Max: "Max", collective.Min: "Min", collective.Avg: "Avg"}
	for i, typ := range elements.Reducible() {
		if names[typ.Type] == "" || len(operations[typ.Type]) == 0 {
			t.Errorf("nothing is tested of %v", typ)
		}
		if testing.Short() && i%2 == 0 && typ.Type != collective.BF16 && typ.Type != collective.U8 {
			continue // compilers take most of the time
		}
		for _, op := range operations[typ.Type] {
			t.Run(fmt.Sprintf("%v of %v", op, typ), func(t *testing.T) {
				ranks := 2 + (i+1)%3
				defines := []string{"ELEMENT=" + names[typ.Type], "OPERATION=" + macros[op]}
				preload(t, "pipe_types_test.cu", typesSource, defines...)
				testgroup.Run(t, ranks, communicator.Options{}, func(ctx context.Context, comm *communicator.Communicator) error {
					return reduceInRing(ctx, comm, typ, op, defines...)
				})
			})
		}
	}
}

// reduceInRing all-reduces vectors of some lengths and checks every element.
func reduceInRing(ctx context.Context, comm *communicator.Communicator, typ elements.Type, op collective.Op, defines ...string) error {
	k, result, err := loaded(ctx, comm, "pipe_types_test.cu", typesSource, "allReduce", defines...)
	if err != nil {
		return err
	}
	stream, err := comm.NewStream()
	if err != nil {
		return err
	}
	rank, ranks := comm.Rank(), comm.Size()
	o := ring(comm)
	o.Size = channel.PipeSize{Slots: 8, SlotBytes: 256}
	p, err := comm.Pipes(ctx, o)
	if err != nil {
		return err
	}
	const most = 301 // elements
	memory, err := comm.Device().Alloc(uint64(2*most*typ.Size() + 16))
	if err != nil {
		return err
	}
	for _, count := range []int{0, 1, ranks + 1, most} {
		seeds := make([]uint64, ranks)
		for rank := range seeds {
			seeds[rank] = uint64(100*count + rank)
		}
		mine := make([]byte, count*typ.Size())
		typ.Fill(mine, seeds[rank])
		src, err1 := memory.Slice(0, uint64(len(mine)))
		dst, err2 := memory.Slice(uint64(len(mine)), uint64(len(mine)))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := errors.Join(gpu.CopyIn(src, mine), comm.Barrier(ctx)); err != nil {
			return err
		}
		if err := k.Launch(stream, gpu.Blocks(1, 32), p.Set(), rank, ranks, src.Ptr(), dst.Ptr(), count, result); err != nil {
			return err
		}
		if err := errors.Join(wait(ctx, stream, result), gpu.CopyOut(mine, dst)); err != nil {
			return err
		}
		roundings := max(1, ranks-1) // of partial results of 16 bits
		if typ.Size() == 1 || op == collective.Avg {
			roundings = 1
		}
		if wrong := typ.WrongReduced(mine, op, seeds, roundings); wrong > 0 {
			return fmt.Errorf("rank %d of %d, %v of %v: %d of %d elements are wrong", rank, ranks, op, typ, wrong, count)
		}
	}
	return errors.Join(comm.Barrier(ctx), p.Close())
}

// TestPipeChecks has kernels use pipes otherwise than these are made. The group fails with
// an error that names both ranks.
func TestPipeChecks(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("a check that fails ends the use of a GPU by this process")
	}
	for name, test := range map[string]struct {
		kinds   [2]int
		bytes   [2]uint64
		c       pipeConfig
		want    []string // any of these
		threads int      // 32 if it is 0
	}{
		"a longer receive":             {[2]int{opSend, opRecv}, [2]uint64{1000, 1001}, pipeConfig{slots: 8, slotBytes: 256}, []string{"receive of 1001 bytes from rank 0 by a pipe, and rank 0 sends 1000"}, 0},
		"a shorter receive":            {[2]int{opSend, opRecv}, [2]uint64{1000, 256}, pipeConfig{slots: 8, slotBytes: 256}, []string{"receive of 256 bytes from rank 0 by a pipe, and rank 0 sends 1000"}, 0},
		"a shorter receive, by port":   {[2]int{opSend, opRecv}, [2]uint64{1000, 256}, pipeConfig{slots: 8, slotBytes: 256, ports: true}, []string{"receive of 256 bytes from rank 0 by a pipe, and rank 0 sends 1000"}, 0},
		"a shorter receive, zero copy": {[2]int{opSend, opRecv}, [2]uint64{1000, 999}, pipeConfig{slots: 8, slotBytes: 256, buffered: true}, []string{"send of 1000 bytes to rank 1 by a pipe, and rank 1 receives 999", "receive of 999 bytes from rank 0 by a pipe, and rank 0 sends 1000"}, 0},
		"a shorter receive, shared":    {[2]int{opSend, opRecv}, [2]uint64{1000, 256}, pipeConfig{slots: 2, slotBytes: 128, shared: true}, []string{"receive of 256 bytes from rank 0 by a pipe, and rank 0 sends 1000"}, 0},
		"a longer receive, shared":     {[2]int{opSend, opRecv}, [2]uint64{256, 1000}, pipeConfig{slots: 2, slotBytes: 128, shared: true}, []string{"receive of 1000 bytes from rank 0 by a pipe, and rank 0 sends 256"}, 0},
		"other long receives, shared":  {[2]int{opSend, opRecv}, [2]uint64{600, 1000}, pipeConfig{slots: 2, slotBytes: 128, shared: true}, []string{"receive of 1000 bytes from rank 0 by a pipe, and rank 0 sends 600", "send of 600 bytes to rank 1 by a pipe, and rank 1 receives 1000"}, 0},
		"half a warp":                  {[2]int{opSend, opRecv}, [2]uint64{8, 8}, pipeConfig{slots: 8, slotBytes: 256, warps: true}, []string{"by warps in blocks of 48 threads: they must be whole warps"}, 48},
		"two senders":                  {[2]int{opSend, opSend}, [2]uint64{8, 8}, pipeConfig{slots: 8, slotBytes: 256}, []string{"channel 0 to peer 0 of a set, which has 1 to each of 0 peers"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			test.c.name = "stream"
			preload(t, "pipe_test.cu", pipeSource, test.c.defines()...)
			err := failing(t, func(ctx context.Context, comm *communicator.Communicator) error {
				k, _, err := loaded(ctx, comm, "pipe_test.cu", pipeSource, "one", test.c.defines()...)
				if err != nil {
					return err
				}
				stream, err := comm.NewStream()
				if err != nil {
					return err
				}
				memory, err := gpu.Upload(comm.Device(), make([]byte, 2000))
				if err != nil {
					return err
				}
				o := communicator.PipeOptions{To: []int{1}}
				if comm.Rank() == 1 {
					o = communicator.PipeOptions{From: []int{0}}
				}
				if test.c.buffered {
					o.Buffer = memory
				}
				p, end, err := test.c.pipes(ctx, comm, o)
				if err != nil {
					return err
				}
				defer end()
				if err := k.Launch(stream, gpu.Blocks(1, max(32, test.threads)), p.Set(), test.kinds[comm.Rank()], test.bytes[comm.Rank()], memory); err != nil {
					return err
				}
				return stream.Synchronize(ctx)
			}, communicator.Options{})
			found := false
			for _, text := range test.want {
				found = found || err != nil && strings.Contains(err.Error(), text)
			}
			if !found {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// failing runs two ranks, and returns their error.
func failing(t *testing.T, rank func(ctx context.Context, comm *communicator.Communicator) error, o communicator.Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := communicator.RunTogether(ctx, []*gpu.Device{testdev.Open(t, 0), testdev.Open(t, 1)}, o, rank)
	if err == nil {
		t.Error("no error")
	}
	return err
}

// TestPipeWaits has a receiver wait for a chunk that does not come, and a sender for a slot. The
// error of all ranks names the two ranks and the pipe.
func TestPipeWaits(t *testing.T) {
	for name, test := range map[string]struct {
		kind int
		want []string
	}{
		"a receiver": {opRecv, []string{"rank 0 never signalled rank 1: rank 1 has waited ", "s for signal 1 of channel 'stream' from 0 to 1"}},
		"a sender":   {opSend, []string{"rank 1 never signalled rank 0: rank 0 has waited ", "s for signal 1 of channel 'stream' from 1 to 0"}},
	} {
		for _, c := range []pipeConfig{{name: "stream", slots: 2, slotBytes: 128}, {name: "stream", slots: 2, slotBytes: 128, ports: true}} {
			t.Run(fmt.Sprintf("%s, ports=%v", name, c.ports), func(t *testing.T) {
				testdev.Parallel(t)
				preload(t, "pipe_test.cu", pipeSource)
				err := failing(t, func(ctx context.Context, comm *communicator.Communicator) error {
					k, _, err := loaded(ctx, comm, "pipe_test.cu", pipeSource, "one")
					if err != nil {
						return err
					}
					stream, err := comm.NewStream()
					if err != nil {
						return err
					}
					memory, err := gpu.Upload(comm.Device(), make([]byte, 1000))
					if err != nil {
						return err
					}
					o, works := communicator.PipeOptions{To: []int{1}}, test.kind == opSend
					if comm.Rank() == 1 {
						o, works = communicator.PipeOptions{From: []int{0}}, test.kind == opRecv
					}
					p, end, err := c.pipes(ctx, comm, o)
					if err != nil {
						return err
					}
					defer end()
					if !works {
						<-comm.Done()
						return comm.Err()
					}
					if err := k.Launch(stream, gpu.Blocks(1, 32), p.Set(), test.kind, 1000, memory); err != nil {
						return err
					}
					return stream.Synchronize(ctx)
				}, communicator.Options{Timeout: 3 * time.Second})
				testerr.Expect(t, err, mscclgo.ErrTimeout, test.want...)
			})
		}
	}
}

// TestPipeSize has sizes that pipes cannot have.
func TestPipeSize(t *testing.T) {
	for size, part := range map[pipe.Size]string{
		{Slots: 3}:                           "3 slots",
		{Slots: -8}:                          "-8 slots",
		{Slots: 8192}:                        "8192 slots",
		{SlotBytes: 100}:                     "slots of 100 bytes",
		{SlotBytes: 1 << 41}:                 "bytes",
		{Slots: 1 << 62, SlotBytes: 1 << 20}: "slots",
		{Slots: 4096, SlotBytes: 1}:          "slots of 1 bytes",
	} {
		if err := size.Check(); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v: %v, want %q", size, err, part)
		}
	}
	size := pipe.Size{}
	testerr.Report(t, size.Check())
	if got, want := size.Bytes(), uint64(256+8*(128<<10)); got != want {
		t.Errorf("a pipe has %d bytes, want %d", got, want)
	}
}

// TestWrongPipeEnds makes ends of what does not go together.
func TestWrongPipeEnds(t *testing.T) {
	var none *pipe.Pipe
	if err := errors.Join(none.Close(), new(pipe.Pipe).Close()); err != nil {
		t.Errorf("closing nothing: %v", err)
	}
	ends := newMemoryEnds(t)
	end := ends[0]
	size := pipe.Size{Slots: 2, SlotBytes: 128}
	good := func() pipe.Config {
		return pipe.Config{Size: size, Own: pipe.End{Memory: end.local}, Peer: pipe.End{Memory: end.remote}}
	}
	testerr.Must(pipe.NewByThreads(end.semaphore, good()))(t)
	for part, change := range map[string]func(c *pipe.Config){
		"3 slots":                          func(c *pipe.Config) { c.Slots = 3 },
		"is nil":                           func(c *pipe.Config) { c.Peer.Memory = nil },
		"this rank's end needs 1280 bytes": func(c *pipe.Config) { c.SlotBytes = 512 },
		"this rank's end needs 512 bytes at offset 100": func(c *pipe.Config) { c.Own.Offset = 100 },
		"this rank's end needs 512 bytes at offset 896": func(c *pipe.Config) { c.Own.Offset = 896 },
		"the peer's end needs 256 bytes at offset 1024": func(c *pipe.Config) { c.Peer.Offset = 1024 },
		"not in memory of this rank":                    func(c *pipe.Config) { c.Own.Memory = end.remote },
		"the buffer is":                                 func(c *pipe.Config) { c.Buffer = end.remote },
		"the peer's end needs 512 bytes at offset 640":  func(c *pipe.Config) { c.Sends, c.Peer.Offset = true, 640 },
		"not memory of the receiver, rank 1":            func(c *pipe.Config) { c.Sends, c.Buffer = true, end.local },
		"slots of 1 bytes":                              func(c *pipe.Config) { c.SlotBytes = 1 },
	} {
		c := good()
		change(&c)
		if _, err := pipe.NewByThreads(end.semaphore, c); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
	if _, err := pipe.NewByThreads(nil, good()); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("no semaphore: %v", err)
	}
	wrong := good()
	wrong.Own.Offset = 100
	if _, err := pipe.NewByPort(nil, nil, wrong); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("wrong ends for a port: %v", err)
	}
	if err := wrong.PreparePort(); !errors.Is(err, mscclgo.ErrInvalid) {
		t.Errorf("prepared for a port: %v", err)
	}
	for _, m := range []*registeredmem.Memory{end.remote, end.local} {
		testerr.Check(t, m.Close())
		if _, err := pipe.NewByThreads(end.semaphore, good()); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "is closed") {
			t.Errorf("closed memory: %v", err)
		}
	}
}
