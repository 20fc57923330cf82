package communicator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testcmp"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/proxyservice"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// portEnd is a rank of two with port channels to the other, for operations on streams. The
// other puts into its inbox.
type portEnd struct {
	*worker
	service      *proxyservice.ProxyService
	ports        *communicator.PortChannels
	local, inbox *gpu.Buffer
}

// portWords is the size of the buffers of a portEnd, in words.
const portWords = 1 << 12

// portEnds has the ranks make channels.
func portEnds(t testing.TB, comms []*communicator.Communicator, direct channel.Direct, o communicator.PortChannelOptions) []*portEnd {
	t.Helper()
	ends := make([]*portEnd, len(comms))
	all := workers(t, comms)
	each(t, len(comms), func(rank int) (err error) {
		e := &portEnd{worker: all[rank]}
		d := e.comm.Device()
		e.local, e.inbox = upload(t, d, 0, 8*portWords), upload(t, d, 0, 8*portWords)
		if e.service, err = e.comm.ProxyService(t.Context(), proxyservice.ServiceOptions{Direct: direct}); err != nil {
			return err
		}
		o := o
		o.Inbox, o.Name, o.OnStream = e.inbox, "halo", true
		e.ports, err = e.comm.PortChannels(t.Context(), e.service, e.local, o)
		ends[rank] = e
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		each(t, len(ends), func(rank int) error {
			e := ends[rank]
			err := errors.Join(e.comm.Synchronize(ctx, e.stream), e.comm.Barrier(ctx))
			if e.comm.Err() != nil {
				err = nil // the test's own
			}
			return errors.Join(err, e.service.Close(), e.ports.Close())
		})
	})
	return ends
}

// to returns channel 0 to the other rank, on the rank's stream.
func (e *portEnd) to() communicator.StreamPort {
	return e.ports.OnStream(e.stream, 0, 1-e.comm.Rank())
}

// sync waits for the rank's stream, and for the other rank.
func (e *portEnd) sync(t testing.TB) error {
	return errors.Join(e.comm.Synchronize(t.Context(), e.stream), e.comm.Barrier(t.Context()))
}

// fill sets both buffers.
func (e *portEnd) fill(local, inbox []uint64) error {
	return errors.Join(gpu.CopyIn(e.local, local), gpu.CopyIn(e.inbox, inbox))
}

// have compares what is in a buffer.
func have(t testing.TB, what string, b *gpu.Buffer, want []uint64) {
	t.Helper()
	got := make([]uint64, len(want))
	testerr.Report(t, gpu.CopyOut(got, b))
	testcmp.Equal(t, what, got, want)
}

// overAll runs a test of two ranks over each transport: over mapped memory with what threads do
// themselves, and with all left to the host.
func overAll(t *testing.T, o communicator.PortChannelOptions, test func(t *testing.T, ends []*portEnd)) {
	for name, direct := range map[string]channel.Direct{"CUDA IPC": channel.DefaultDirect, "CUDA IPC, by the host": channel.HostOnly} {
		t.Run(name, func(t *testing.T) {
			test(t, portEnds(t, group(t, 2, communicator.Options{Timeout: patience}), direct, o))
		})
	}
	overEach(t, 2, func(t *testing.T, comms []*communicator.Communicator, _ registeredmem.Transports) {
		test(t, portEnds(t, comms, 0, o))
	})
}

// numbered returns n words that count from the first.
func numbered(first uint64, n int) []uint64 {
	words := make([]uint64, n)
	for i := range words {
		words[i] = first + uint64(i)
	}
	return words
}

// streamOps are all operations, with what they do to the peer's memory and to this rank's.
var streamOps = []struct {
	name    string
	queue   func(to communicator.StreamPort) error
	does    func(theirs, mine []uint64)
	signals bool
	flushes bool
}{
	{"Put", func(to communicator.StreamPort) error { return to.Put(8, 16, 24) },
		func(theirs, mine []uint64) { copy(theirs[1:4], mine[2:]) }, false, false},
	{"Put of all", func(to communicator.StreamPort) error { return to.Put(0, 0, 8*portWords) },
		func(theirs, mine []uint64) { copy(theirs, mine) }, false, false},
	{"PutWithSignal", func(to communicator.StreamPort) error { return to.PutWithSignal(8*portWords-8, 0, 8) },
		func(theirs, mine []uint64) { theirs[portWords-1] = mine[0] }, true, false},
	{"PutWithSignalAndFlush", func(to communicator.StreamPort) error { return to.PutWithSignalAndFlush(0, 8*1000, 8*3000) },
		func(theirs, mine []uint64) { copy(theirs, mine[1000:4000]) }, true, true},
	{"Get", func(to communicator.StreamPort) error { return to.Get(40, 16, 80) },
		func(theirs, mine []uint64) { copy(mine[2:], theirs[5:15]) }, false, false},
	{"GetAndFlush", func(to communicator.StreamPort) error { return to.GetAndFlush(0, 0, 8*portWords) },
		func(theirs, mine []uint64) { copy(mine, theirs) }, false, true},
	{"Store", func(to communicator.StreamPort) error { return to.Store(24, 1<<63|7) },
		func(theirs, _ []uint64) { theirs[3] = 1<<63 | 7 }, false, false},
	{"StoreAndFlush", func(to communicator.StreamPort) error { return to.StoreAndFlush(8*portWords-8, 9) },
		func(theirs, _ []uint64) { theirs[portWords-1] = 9 }, false, true},
	{"Add", func(to communicator.StreamPort) error { return to.Add(0, ^uint64(0)) },
		func(theirs, _ []uint64) { theirs[0]-- }, false, false},
	{"AddAndFlush", func(to communicator.StreamPort) error { return to.AddAndFlush(56, 1<<40) },
		func(theirs, _ []uint64) { theirs[7] += 1 << 40 }, false, true},
	{"Exchange", func(to communicator.StreamPort) error { return to.Exchange(32, 11, 8) },
		func(theirs, mine []uint64) { mine[1], theirs[4] = theirs[4], 11 }, false, false},
	{"ExchangeAndFlush", func(to communicator.StreamPort) error { return to.ExchangeAndFlush(0, 12, 8*portWords-8) },
		func(theirs, mine []uint64) { mine[portWords-1], theirs[0] = theirs[0], 12 }, false, true},
	{"Signal", func(to communicator.StreamPort) error { return to.Signal() }, func(theirs, mine []uint64) {}, true, false},
	{"Flush", func(to communicator.StreamPort) error { return to.Flush() }, func(theirs, mine []uint64) {}, false, true},
}

// TestStreamPort has a rank do each operation alone, and looks at all memory behind its flush, and at
// the peer's behind its signal.
func TestStreamPort(t *testing.T) {
	overAll(t, communicator.PortChannelOptions{}, func(t *testing.T, ends []*portEnd) {
		for _, op := range streamOps {
			each(t, 2, func(rank int) error {
				e := ends[rank]
				theirs, mine := numbered(5000, portWords), numbered(100, portWords)
				if err := errors.Join(e.fill(mine, theirs), e.comm.Barrier(t.Context())); err != nil {
					return err
				}
				var err error
				switch {
				case rank == 0:
					if err = op.queue(e.to()); !op.flushes {
						err = errors.Join(err, e.to().Flush())
					}
				case op.signals:
					err = e.to().Wait()
				}
				if err := errors.Join(err, e.comm.Synchronize(t.Context(), e.stream)); err != nil {
					return fmt.Errorf("%s: %w", op.name, err)
				}
				if op.does(theirs, mine); rank == 0 { // with no exchange before, which would take time
					have(t, op.name+": the peer's memory", ends[1].inbox, theirs)
					have(t, op.name+": this rank's memory", e.local, mine)
				} else if op.signals {
					have(t, op.name+": the memory behind the signal", e.inbox, theirs)
				}
				return e.comm.Barrier(t.Context())
			})
			if t.Failed() {
				return
			}
		}
	})
}

// TestStreamPortOrder queues all operations again and again, among kernels that use the channel too,
// and signals. The peer looks at its memory behind its waits.
func TestStreamPortOrder(t *testing.T) {
	const rounds, puts = 12, 3
	overAll(t, communicator.PortChannelOptions{}, func(t *testing.T, ends []*portEnd) {
		theirs, mine := numbered(5000, portWords), numbered(100, portWords)
		each(t, 2, func(rank int) error {
			return errors.Join(ends[rank].fill(mine, theirs), ends[rank].comm.Barrier(t.Context()))
		})
		each(t, 2, func(rank int) error {
			e, signals := ends[rank], 1
			for range rounds {
				for _, op := range streamOps {
					if rank == 0 && op.name != "Flush" {
						if err := op.queue(e.to()); err != nil {
							return err
						}
						op.does(theirs, mine)
					}
					if op.signals {
						signals++
					}
				}
				// It puts the first words, signals so often, and flushes.
				signals += puts
				if rank == 0 {
					if err := e.launch("portStream", 1, 1, e.ports.HandleOf(0, 1), uint64(64), uint32(puts)); err != nil {
						return err
					}
					copy(theirs[:8], mine[:8])
				}
			}
			if rank == 0 {
				return errors.Join(e.to().Signal(), e.to().Flush(), e.sync(t))
			}
			for range signals {
				if err := e.to().Wait(); err != nil {
					return err
				}
			}
			return errors.Join(e.stream.Copy(e.local, 0, e.inbox, 0, 8*portWords), e.sync(t))
		})
		have(t, "the peer's memory behind its waits", ends[1].local, theirs)
		have(t, "this rank's memory", ends[0].local, mine)
	})
}

// TestStreamPortFlush overwrites what was put and uses what was got, behind flushes of each kind.
func TestStreamPortFlush(t *testing.T) {
	const parts = 16
	const part = 8 * portWords / parts
	overAll(t, communicator.PortChannelOptions{}, func(t *testing.T, ends []*portEnd) {
		each(t, 2, func(rank int) error {
			e := ends[rank]
			if rank == 1 {
				for range parts / 2 {
					if err := e.to().Wait(); err != nil {
						return err
					}
				}
				return errors.Join(e.to().Wait(), e.sync(t))
			}
			for i := range uint64(parts) {
				err := e.stream.Fill(e.local, 0, byte(i+1), part)
				if i%2 == 0 {
					err = errors.Join(err, e.to().PutWithSignalAndFlush(i*part, 0, part))
				} else {
					err = errors.Join(err, e.to().Put(i*part, 0, part), e.to().Flush())
				}
				err = errors.Join(err, e.stream.Fill(e.local, 0, 0xff, part))
				// What comes back goes to its place in the upper half.
				err = errors.Join(err, e.to().GetAndFlush(i*part, part, part), e.stream.Copy(e.inbox, i*part, e.local, part, part))
				if err != nil {
					return err
				}
			}
			return errors.Join(e.to().Signal(), e.sync(t))
		})
		want := make([]uint64, portWords)
		for i := range want {
			want[i] = 0x0101010101010101 * uint64(i/(portWords/parts)+1)
		}
		have(t, "what was put", ends[1].inbox, want)
		have(t, "what was got", ends[0].inbox, want)
	})
}

// TestStreamPortGraph captures a volley and launches it again and again. Each rank adds to what has
// come, and sends it back, so that a wait that ends too early shows in the sum.
func TestStreamPortGraph(t *testing.T) {
	const replays, adds = 20, 3
	overAll(t, communicator.PortChannelOptions{}, func(t *testing.T, ends []*portEnd) {
		each(t, 2, func(rank int) error {
			e := ends[rank]
			if err := errors.Join(e.comm.Device().Internal().PrepareAtomics(), e.stream.BeginCapture()); err != nil {
				return err
			}
			receive := func() error {
				return errors.Join(e.to().Wait(), e.stream.Copy(e.local, 0, e.inbox, 0, 8))
			}
			send := func() error {
				return errors.Join(e.stream.Internal().Add64(e.local, 0, uint64(rank+1)), e.to().PutWithSignalAndFlush(0, 0, 8), e.to().Add(8, adds))
			}
			steps := []func() error{send, receive}
			if rank == 1 {
				slices.Reverse(steps)
			}
			err := errors.Join(steps[0](), steps[1]())
			graph, captureErr := e.stream.EndCapture()
			if err := errors.Join(err, captureErr); err != nil {
				return err
			}
			for range replays {
				if err := graph.Launch(e.stream); err != nil {
					return err
				}
			}
			if err := errors.Join(e.to().Flush(), e.sync(t)); err != nil {
				return err
			}
			sum := uint64(replays * 3)
			if rank == 1 {
				have(t, "what rank 0 sent last", e.inbox, []uint64{sum - 2, replays * adds})
			} else {
				have(t, "what rank 1 sent last", e.inbox, []uint64{sum, replays * adds})
			}
			return graph.Close()
		})
	})
}

// TestStreamPortStreams uses a stream of other code's too: one channel on both streams, with events
// between them, and another on the second.
func TestStreamPortStreams(t *testing.T) {
	const rounds = 10
	overAll(t, communicator.PortChannelOptions{PerPeer: 2}, func(t *testing.T, ends []*portEnd) {
		each(t, 2, func(rank int) error {
			e := ends[rank]
			d := e.comm.Device()
			owned, err := d.NewStream()
			if err != nil {
				return err
			}
			defer owned.Close()
			wrapped, err := d.WrapStream(owned.Handle())
			if err != nil {
				return err
			}
			defer wrapped.Close()
			event, err := d.NewEvent()
			if err != nil {
				return err
			}
			defer event.Close()
			own, other := e.to(), e.ports.OnStream(wrapped, 0, 1-rank)
			second := e.ports.OnStream(wrapped, 1, 1-rank)
			for i := range uint64(rounds) {
				if rank == 0 {
					// The signal of one stream is behind the put of the other.
					err = errors.Join(own.Store(0, i+1), e.stream.Record(event), wrapped.Wait(event), other.Signal(), second.Store(8, i+1), second.Signal(),
						other.Wait(), second.Wait(), wrapped.Record(event), e.stream.Wait(event))
				} else {
					err = errors.Join(own.Wait(), e.stream.Copy(e.local, 16*i, e.inbox, 0, 8), own.Signal(),
						second.Wait(), wrapped.Copy(e.local, 16*i+8, e.inbox, 8, 8), second.Signal())
				}
				if err != nil {
					return err
				}
			}
			if err := errors.Join(wrapped.Synchronize(t.Context()), e.sync(t)); err != nil || rank == 0 {
				return err
			}
			var want []uint64
			for i := range uint64(rounds) {
				want = append(want, i+1, i+1)
			}
			have(t, "what was there behind each wait", e.local, want)
			return nil
		})
	})
}

// TestStreamPortTimeout has a rank wait for a signal that does not come. The error tells, and what
// is behind the wait does nothing.
func TestStreamPortTimeout(t *testing.T) {
	for _, direct := range []channel.Direct{channel.DefaultDirect, channel.HostOnly} {
		comms := groupWith(t, []communicator.Options{{Timeout: 2 * time.Second}, {Timeout: time.Hour}})
		ends := portEnds(t, comms, direct, communicator.PortChannelOptions{})
		stream := testerr.Must(comms[0].NewStream())(t)
		defer stream.Close()
		to := ends[0].ports.OnStream(stream, 0, 1)
		start := time.Now()
		testerr.Check(t, errors.Join(to.Signal(), to.Wait(), to.Store(0, 1), to.PutWithSignalAndFlush(8, 0, 8)))
		failing(t, 0, stream.Synchronize(t.Context()), mscclgo.ErrTimeout, "rank 0, peer 1", "signal 1 of channel 'halo'")
		within(t, start)
		select {
		case <-comms[1].Done():
		case <-time.After(soon):
			t.Fatal("rank 1 is not told")
		}
		have(t, "the peer's memory", ends[1].inbox, []uint64{0, 0})
		failing(t, 0, to.Put(0, 0, 8), mscclgo.ErrTimeout, "rank 0, peer 1", "halo")
	}
}

// TestPeerClosesInbox has a rank's proxy put to a buffer that the peer has closed: the peer is to
// blame, on both ranks.
func TestPeerClosesInbox(t *testing.T) {
	ends := portEnds(t, group(t, 2, communicator.Options{Timeout: patience}), channel.HostOnly, communicator.PortChannelOptions{})
	testerr.Check(t, ends[1].inbox.Close())
	testerr.Check(t, ends[0].to().PutWithSignalAndFlush(8, 0, 8))
	failing(t, 0, ends[0].comm.Synchronize(t.Context(), ends[0].stream), mscclgo.ErrRemote, "rank 0, peer 1", "rank 1 has closed the buffer")
	select {
	case <-ends[1].comm.Done():
	case <-time.After(soon):
		t.Fatal("rank 1 is not told")
	}
	failing(t, 1, ends[1].comm.Err(), mscclgo.ErrRemote, "rank 0 considers this rank failed", "rank 1 has closed the buffer")
	failing(t, 0, ends[0].service.Close(), mscclgo.ErrRemote, "rank 1 has closed the buffer")
}

// TestStreamPortWrong makes wrong calls. Nothing is queued by them.
func TestStreamPortWrong(t *testing.T) {
	for _, o := range []communicator.Options{{}, overEthernet()} {
		t.Run(o.Transports.String(), func(t *testing.T) {
			ends := portEnds(t, group(t, 2, o), 0, communicator.PortChannelOptions{PerPeer: 2})
			e := ends[0]
			foreign := testerr.Must(testdev.Open(t, 1).NewStream())(t)
			defer foreign.Close()
			closed := testerr.Must(e.comm.NewStream())(t)
			closed.Close()
			const size = 8 * portWords
			none := (*communicator.PortChannels)(nil).OnStream(e.stream, 0, 1)
			for name, c := range map[string]struct {
				err  error
				says string
			}{
				"channels":          {none.Signal(), "communicator: signal on a stream: invalid use: the channels are nil"},
				"stream":            {e.ports.OnStream(nil, 0, 1).Flush(), "communicator: flush on a stream (rank 0, peer 1): invalid use: the stream is nil"},
				"closed stream":     {e.ports.OnStream(closed, 0, 1).Wait(), "wait on a stream (rank 0, peer 1): invalid use: the stream on"},
				"device":            {e.ports.OnStream(foreign, 0, 1).Put(0, 0, 8), "put on a stream (rank 0, peer 1): invalid use: the stream is of "},
				"rank":              {e.ports.OnStream(e.stream, 0, 2).Put(0, 0, 8), "(rank 0): invalid use: the channels lead to the ranks [0 1], not to rank 2"},
				"negative rank":     {e.ports.OnStream(e.stream, 0, -1).Wait(), "not to rank -1"},
				"channel":           {e.ports.OnStream(e.stream, 2, 1).Signal(), "channel 2 is asked for, and there are 2 to each rank"},
				"negative channel":  {e.ports.OnStream(e.stream, -1, 1).Signal(), "channel -1 is asked for"},
				"put":               {e.to().Put(size-7, 0, 8), "put on a stream (rank 0, peer 1): invalid use: 8 bytes at offset 32761 are outside "},
				"put from":          {e.to().PutWithSignal(0, 8, size), "put and signal on a stream (rank 0, peer 1): invalid use: 32768 bytes at offset 8 are outside "},
				"put, sum wraps":    {e.to().PutWithSignalAndFlush(8, 0, 1<<64-8), "18446744073709551608 bytes at offset 8"},
				"get":               {e.to().Get(size+1, 0, 0), "get on a stream (rank 0, peer 1): invalid use: 0 bytes at offset 32769 are outside "},
				"get into":          {e.to().GetAndFlush(0, 1<<63, 8), "8 bytes at offset 9223372036854775808 are outside "},
				"store":             {e.to().Store(size-4, 0), "store on a stream (rank 0, peer 1): invalid use: 8 bytes at offset 32764 are outside "},
				"store, aligned":    {e.to().StoreAndFlush(12, 0), "the word at offset 12 of "},
				"add":               {e.to().Add(size, 0), "8 bytes at offset 32768 are outside "},
				"add, aligned":      {e.to().AddAndFlush(1, 0), "is not aligned to 8 bytes"},
				"exchange":          {e.to().Exchange(size, 0, 0), "8 bytes at offset 32768 are outside "},
				"exchange into":     {e.to().Exchange(0, 0, size), "exchange on a stream (rank 0, peer 1): invalid use: 8 bytes at offset 32768 are outside "},
				"exchange, aligned": {e.to().ExchangeAndFlush(0, 0, 4), "the word at offset 4 of "},
			} {
				if !errors.Is(c.err, mscclgo.ErrInvalid) || !strings.Contains(c.err.Error(), c.says) || strings.Contains(c.err.Error(), "\n") {
					t.Errorf("%s: %v; want %q", name, c.err, c.says)
				}
			}
			each(t, 2, func(rank int) error {
				e := ends[rank]
				if err := errors.Join(e.to().Signal(), e.to().Wait(), e.sync(t)); err != nil {
					return err
				}
				have(t, "the peer's memory", e.inbox, make([]uint64, portWords))
				if err := e.service.Close(); err != nil {
					return err
				}
				failing(t, rank, e.to().Flush(), mscclgo.ErrInvalid, "the proxy service of the channels is closed")
				if err := errors.Join(e.comm.Barrier(t.Context()), e.ports.Close()); err != nil {
					return err
				}
				failing(t, rank, e.to().Flush(), mscclgo.ErrInvalid, "the channels are closed")
				return nil
			})
		})
	}
}

// TestStreamPortNotAsked has channels that were made without kernels for streams, and a buffer that
// its owner has closed.
func TestStreamPortNotAsked(t *testing.T) {
	comms := group(t, 1, communicator.Options{})
	c := comms[0]
	s := testerr.Must(c.ProxyService(t.Context(), proxyservice.ServiceOptions{}))(t)
	defer s.Close()
	stream := testerr.Must(c.NewStream())(t)
	defer stream.Close()
	for onStream, says := range map[bool]string{false: "were made without PortChannelOptions.OnStream", true: "closed"} {
		buffer := upload(t, c.Device(), 0, 64)
		p := testerr.Must(c.PortChannels(t.Context(), s, buffer, communicator.PortChannelOptions{OnStream: onStream}))(t)
		buffer.Close()
		failing(t, 0, p.OnStream(stream, 0, 0).Put(0, 0, 8), mscclgo.ErrInvalid, "rank 0, peer 0", says)
	}
}

// TestStreamPortNoCompiler has no rank that can compile the kernels. The group goes on.
func TestStreamPortNoCompiler(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("the compiler of emulated devices is missing")
	}
	comms := group(t, 2, communicator.Options{})
	t.Setenv("MSCCLGO_CACHE", t.TempDir())
	t.Setenv("CXX", "/does/not/exist")
	each(t, 2, func(rank int) error {
		c := comms[rank]
		s, err := c.ProxyService(t.Context(), proxyservice.ServiceOptions{})
		if err != nil {
			return err
		}
		defer s.Close()
		buffer := upload(t, c.Device(), 0, 64)
		_, err = c.PortChannels(t.Context(), s, buffer, communicator.PortChannelOptions{OnStream: true})
		failing(t, rank, err, mscclgo.ErrUnsupported, "compile ports.cu for emu", "/does/not/exist")
		p, err := c.PortChannels(t.Context(), s, buffer, communicator.PortChannelOptions{})
		if err != nil {
			return err
		}
		return errors.Join(c.Barrier(t.Context()), p.Close())
	})
}
