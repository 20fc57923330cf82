package communicator

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/keep"
	"github.com/mscclgo/mscclgo/internal/native"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// StreamPort queues the operations of one port channel on a stream, for programs that have
// no kernel of their own for them. They do what the operations of PortChannelHandle do; see
// <mscclgo/port_channel.cuh>. Offsets and sizes are in bytes:
// remote and dst offsets are in the peer's memory, local and src offsets in this rank's.
//
// Each operation takes its place in the stream: it begins when the work before it is done, and
// finds the memory as that work has left it. [StreamPort.Flush], each method whose name ends in
// AndFlush, and [StreamPort.Wait] hold the stream until they are done. The others end once the
// host's proxy has been asked, as they do in a kernel. So before a flush a put's source must
// not change, and the bytes of a get must not be used. Kernels of the program may use the
// channel too, on this stream or another. One channel's operations are done in the order in
// which they were asked for.
//
// Methods return once the operation is queued. Any goroutine may call them. Waits of one
// channel must be on one stream, or be ordered by events. While the stream captures they
// become part of the graph, with the values and offsets that they were given; each launch
// of the graph makes them again, and waits for one more signal for each Wait.
//
// A wait or flush that fails, by Options.Timeout or because the group fails, ends, and fails
// the group as one of a kernel does: [Communicator.Synchronize] returns the error, which names
// the peer. Operations that come behind it, on any stream, do nothing. Copies and other kernels
// run regardless.
//
// An operation is a kernel of one thread, which begins once a multiprocessor has room for it:
// kernels that fill the device must not wait for what it does.
//
// All methods return ErrInvalid, before anything is queued, for a stream that is nil, closed or of
// another device, for channels that are closed, whose service is closed, or that were made without
// PortChannelOptions.OnStream, for a channel or rank that does not exist, for bytes outside the memories,
// and for words that are not aligned to 8 bytes; and the group's error once it has failed.
type StreamPort struct {
	channels *PortChannels
	stream   *gpu.Stream
	channel  int
	rank     int
}

// OnStream returns channel i, below PerPeer, to a rank of Ranks, for operations on a stream of the
// communicator's device, also one of [gpu.Device.WrapStream]. PortChannelOptions.OnStream
// must have been set. The methods of the result return the error of wrong arguments. The result is
// valid until Close of the channels or the stream, also after [PortChannels.Reform]. What was
// queued must have run before the channels or their proxy service are closed: synchronize the stream.
func (p *PortChannels) OnStream(s *gpu.Stream, i, rank int) StreamPort {
	return StreamPort{p, s, i, rank}
}

// Put queues a copy of n bytes from this rank's memory to the peer's.
func (s StreamPort) Put(dstOffset, srcOffset, n uint64) error {
	return s.queue("portPut", dstOffset, srcOffset, n)
}

// PutWithSignal is Put and Signal in one.
func (s StreamPort) PutWithSignal(dstOffset, srcOffset, n uint64) error {
	return s.queue("portPutWithSignal", dstOffset, srcOffset, n)
}

// PutWithSignalAndFlush is Put, Signal and Flush in one.
func (s StreamPort) PutWithSignalAndFlush(dstOffset, srcOffset, n uint64) error {
	return s.queue("portPutWithSignalAndFlush", dstOffset, srcOffset, n)
}

// Get queues a copy of n bytes from the peer's memory to this rank's, where they are after a
// flush.
func (s StreamPort) Get(remoteOffset, localOffset, n uint64) error {
	return s.queue("portGet", remoteOffset, localOffset, n)
}

// GetAndFlush is Get and Flush in one.
func (s StreamPort) GetAndFlush(remoteOffset, localOffset, n uint64) error {
	return s.queue("portGetAndFlush", remoteOffset, localOffset, n)
}

// Store queues the store of a value to an 8-byte word of the peer's memory.
func (s StreamPort) Store(remoteOffset, value uint64) error {
	return s.queue("portStore", remoteOffset, value)
}

// StoreAndFlush is Store and Flush in one.
func (s StreamPort) StoreAndFlush(remoteOffset, value uint64) error {
	return s.queue("portStoreAndFlush", remoteOffset, value)
}

// Add queues the addition of a value to an 8-byte word of the peer's memory. The comment of
// connection.Connection.Add says with respect to what it is atomic.
func (s StreamPort) Add(remoteOffset, value uint64) error {
	return s.queue("portAdd", remoteOffset, value)
}

// AddAndFlush is Add and Flush in one.
func (s StreamPort) AddAndFlush(remoteOffset, value uint64) error {
	return s.queue("portAddAndFlush", remoteOffset, value)
}

// Exchange queues the replacement of an 8-byte word of the peer's memory by a value. What it
// was is in such a word of this rank's memory after a flush. It is atomic as Add is.
func (s StreamPort) Exchange(remoteOffset, value, localOffset uint64) error {
	return s.queue("portExchange", remoteOffset, value, localOffset)
}

// ExchangeAndFlush is Exchange and Flush in one.
func (s StreamPort) ExchangeAndFlush(remoteOffset, value, localOffset uint64) error {
	return s.queue("portExchangeAndFlush", remoteOffset, value, localOffset)
}

// Signal queues a signal, which ends a wait of the peer's, after all that the channel was asked
// for before.
func (s StreamPort) Signal() error { return s.queue("portSignal") }

// Flush holds the stream until all that the channel was asked for before is done at the peer, and
// what was got or exchanged is here.
func (s StreamPort) Flush() error { return s.queue("portFlush") }

// Wait holds the stream until one more signal of the peer's has come, and consumes it. Later
// work of the stream sees what the peer asked for before.
func (s StreamPort) Wait() error { return s.queue("portWait") }

// portOps are the operations, by the name of their kernel in ports.cu: what errors say was tried, and what the arguments are.
var portOps = map[string]struct {
	op    string
	takes portArgs
}{
	"portPut":                   {"communicator: put on a stream", ranges},
	"portPutWithSignal":         {"communicator: put and signal on a stream", ranges},
	"portPutWithSignalAndFlush": {"communicator: put, signal and flush on a stream", ranges},
	"portGet":                   {"communicator: get on a stream", ranges},
	"portGetAndFlush":           {"communicator: get and flush on a stream", ranges},
	"portStore":                 {"communicator: store on a stream", oneWord},
	"portStoreAndFlush":         {"communicator: store and flush on a stream", oneWord},
	"portAdd":                   {"communicator: add on a stream", oneWord},
	"portAddAndFlush":           {"communicator: add and flush on a stream", oneWord},
	"portExchange":              {"communicator: exchange on a stream", twoWords},
	"portExchangeAndFlush":      {"communicator: exchange and flush on a stream", twoWords},
	"portSignal":                {"communicator: signal on a stream", nothing},
	"portFlush":                 {"communicator: flush on a stream", nothing},
	"portWait":                  {"communicator: wait on a stream", nothing},
}

// portArgs is what the arguments of an operation are.
type portArgs int

const (
	nothing  portArgs = iota
	ranges            // the peer's offset, this rank's, bytes
	oneWord           // the peer's offset, a value
	twoWords          // the peer's offset, a value, this rank's offset
)

// queue checks an operation and queues its kernel.
func (s StreamPort) queue(kernel string, args ...uint64) error {
	p := s.channels
	if p == nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, portOps[kernel].op, "the channels are nil")
	}
	if err := s.check(kernel, args); err != nil {
		return err
	}
	all := append(make([]any, 0, 4), p.HandleOf(s.channel, s.rank))
	for _, a := range args {
		all = append(all, a)
	}
	if err := p.sems.c.ports.of[kernel].Launch(s.stream, gpu.Blocks(1, 1), all...); err != nil {
		return s.errorf(mscclgo.KindOf(err), kernel, "%w", err)
	}
	return nil
}

// check returns an error unless the operation can be queued.
func (s StreamPort) check(kernel string, args []uint64) error {
	p, what := s.channels, portOps[kernel].op
	c := p.sems.c
	if err := c.usable(what); err != nil {
		return err
	}
	if !slices.Contains(p.Ranks, s.rank) {
		return c.invalid(what, "the channels lead to the ranks %v, not to rank %d", p.Ranks, s.rank)
	}
	switch {
	case s.channel < 0 || s.channel >= p.sems.perPeer:
		return s.errorf(mscclgo.ErrInvalid, kernel, "channel %d is asked for, and there are %d to each rank", s.channel, p.sems.perPeer)
	case !p.options.OnStream:
		return s.errorf(mscclgo.ErrInvalid, kernel, "the channels were made without PortChannelOptions.OnStream")
	case p.closed:
		return s.errorf(mscclgo.ErrInvalid, kernel, "the channels are closed")
	case p.service.Internal().Closed():
		return s.errorf(mscclgo.ErrInvalid, kernel, "the proxy service of the channels is closed")
	}
	if err := s.stream.Internal().Usable(what); err != nil {
		return s.at(err)
	}
	if d := s.stream.Device(); d != c.dev {
		return s.errorf(mscclgo.ErrInvalid, kernel, "the stream is of %v, the channels of %v%s", d, c.dev, native.Twice(d, c.dev))
	}
	theirs := p.peers.Memories[s.rank]
	switch portOps[kernel].takes {
	case ranges:
		return cmp.Or(s.inside(kernel, theirs, args[0], args[2]), s.inside(kernel, p.mine, args[1], args[2]))
	case oneWord:
		return s.word(kernel, theirs, args[0])
	case twoWords:
		return cmp.Or(s.word(kernel, theirs, args[0]), s.word(kernel, p.mine, args[2]))
	}
	return nil
}

// inside returns an error unless a memory of the channel is open and has n bytes at the offset.
func (s StreamPort) inside(kernel string, m *registeredmem.Memory, offset, n uint64) error {
	switch {
	case offset > m.Size() || n > m.Size()-offset:
		return s.errorf(mscclgo.ErrInvalid, kernel, "%d bytes at offset %d are outside %v", n, offset, m)
	case m.Closed():
		return s.errorf(mscclgo.ErrInvalid, kernel, "%v is closed", m)
	case m == s.channels.mine:
		return s.at(s.stream.Internal().Reaches(s.channels.local, portOps[kernel].op, 0))
	}
	return nil
}

// word is inside for a word, which must be aligned.
func (s StreamPort) word(kernel string, m *registeredmem.Memory, offset uint64) error {
	const bytes = 8
	if err := s.inside(kernel, m, offset, bytes); err != nil {
		return err
	}
	if !m.Internal().WordAligned(offset) {
		return s.errorf(mscclgo.ErrInvalid, kernel, "the word at offset %d of %v is not aligned to 8 bytes", offset, m)
	}
	return nil
}

func (s StreamPort) errorf(kind mscclgo.Kind, kernel string, format string, args ...any) error {
	return s.at(mscclgo.Errorf(kind, portOps[kernel].op, format, args...))
}

// at adds the ranks to an error.
func (s StreamPort) at(err error) error {
	if e := (*mscclgo.Error)(nil); errors.As(err, &e) {
		return e.At(s.channels.sems.c.Rank(), s.rank)
	}
	return err
}

// portKernels are the kernels of StreamPort on a device, by operation.
type portKernels struct {
	module *gpu.Module
	of     map[string]*gpu.Kernel
}

//go:embed kernels/ports.cu
var portsSource []byte

// Precompile compiles the kernels of [StreamPort] for an architecture, "sm_90" or [devicecode.ArchEmu] and the
// like, into the cache of package devicecode. Channels with PortChannelOptions.OnStream need no compiler
// then. Package collective has a Precompile for all kernels of the library.
//
// Errors: as for [devicecode.Compile]; ErrSystem if the cache cannot be written, unless they are there.
func Precompile(ctx context.Context, arch string) error {
	_, err := devicecode.Compile(keep.Images(ctx), arch, portsFile, portsSource, devicecode.Options{})
	return err
}

// portsFile is what messages of the compiler call portsSource.
const portsFile = "ports.cu"

// loadPortKernels compiles the kernels of StreamPort, or finds them in the cache, and loads them, unless they are loaded.
// It ends when the group fails.
func (c *Communicator) loadPortKernels(ctx context.Context) error {
	if c.ports != nil {
		return nil
	}
	ctx, cancel := c.untilFailure(ctx)
	defer cancel()
	module, err := devicecode.Load(ctx, c.dev, portsFile, portsSource, devicecode.Options{Trace: c.tracer != nil})
	if err != nil {
		return err
	}
	k := &portKernels{module, map[string]*gpu.Kernel{}}
	for name := range portOps {
		if k.of[name], err = module.Kernel(name); err != nil {
			return errors.Join(err, module.Close())
		}
	}
	c.ports = k
	return nil
}

// close unloads the kernels. It does nothing on nil.
func (k *portKernels) close() error {
	if k == nil {
		return nil
	}
	return k.module.Close()
}
