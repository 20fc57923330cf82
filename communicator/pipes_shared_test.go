package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/channel"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/pipe"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/internal/test/testerr"
	"github.com/mscclgo/mscclgo/internal/test/testgroup"
	"github.com/mscclgo/mscclgo/proxyservice"
)

// toAllOthers returns options of shared pipes from each of n ranks to all others, the next one first.
func toAllOthers(rank, n int) communicator.PipeOptions {
	o := communicator.PipeOptions{Shared: true}
	for i := 1; i < n; i++ {
		o.To, o.From = append(o.To, (rank+i)%n), append(o.From, (rank+n-i)%n)
	}
	return o
}

// sendToAll has a rank send a message to each of To and receive one from each of From, of so many bytes with
// the first two, and checks what has arrived.
func sendToAll(ctx context.Context, w *worker, p *communicator.Pipes, o communicator.PipeOptions, length uint64) error {
	const longs = 2
	src, err := gpu.Upload(w.comm.Device(), bytes.Repeat([]byte{byte(w.comm.Rank() + 1)}, int(length)))
	if err != nil {
		return err
	}
	dst, err := w.comm.Device().Alloc(uint64(len(o.From)) * length)
	if err != nil {
		return err
	}
	if err := w.launch("toAll", 2, 32, p.Set(), src, dst, length, longs); err != nil {
		return err
	}
	if err := errors.Join(w.comm.Synchronize(ctx, w.stream), w.want(done, done)); err != nil {
		return err
	}
	for i, from := range o.From {
		n := uint64(1000)
		if i < longs {
			n = length
		}
		one, err := dst.Slice(uint64(i)*length, n)
		if err != nil {
			return err
		}
		if err := holds(one, 0, byte(from+1)); err != nil {
			return fmt.Errorf("from rank %d: %w", from, err)
		}
	}
	return errors.Join(src.Close(), dst.Close())
}

// pool returns an error unless ends take so many bytes of the rank's memory, and no lot is lent.
func pool(c *communicator.Communicator, taken uint64) error {
	s, err := c.PipePool()
	if err == nil && (s.Taken != taken || s.Lent != 0) {
		err = fmt.Errorf("the memory of shared pipes says %+v, and ends should take %d bytes", s, taken)
	}
	return err
}

// TestSharedPipes makes pipes beside others, uses both, and closes some, many times. The memory is the same
// each time, and nothing is left behind.
func TestSharedPipes(t *testing.T) {
	const n, rounds, length = 3, 30, 600_000
	comms := group(t, n, communicator.Options{})
	all := workers(t, comms)
	lasting := make([]*communicator.Pipes, n)
	options := make([]communicator.PipeOptions, n)
	need := make([]uint64, n)
	each(t, n, func(rank int) (err error) {
		c := comms[rank]
		if s, err := c.PipePool(); err != nil || s != (channel.PipePoolStats{}) {
			return fmt.Errorf("before its first use the memory says %+v (%v)", s, err)
		}
		options[rank] = toAllOthers(rank, n)
		if need[rank], err = c.PipeBytes(options[rank]); err != nil {
			return err
		}
		if s, err := c.PipePool(); err != nil || s != (channel.PipePoolStats{}) {
			return fmt.Errorf("PipeBytes has made the memory: %+v (%v)", s, err)
		}
		if lasting[rank], err = c.Pipes(t.Context(), options[rank]); err != nil {
			return err
		}
		if size := lasting[rank].From(0, options[rank].From[0]).Handle(); size.SlotBytes != pipe.DefaultSlotBytes || size.SlotCount != 2 || size.LotSlots != 4 {
			return fmt.Errorf("pipes have %d slots of %d bytes and borrow %d", size.SlotCount, size.SlotBytes, size.LotSlots)
		}
		return pool(c, need[rank])
	})
	if t.Failed() {
		t.FailNow()
	}
	remake := func(rank int) error {
		c, o := comms[rank], neighbours(rank, n)
		o.Shared = true
		more, err := c.PipeBytes(o)
		if err != nil {
			return err
		}
		p, err := c.Pipes(t.Context(), o)
		if err != nil {
			return err
		}
		if err := pool(c, need[rank]+more); err != nil {
			return err
		}
		data := upload(t, c.Device(), byte(rank+1), 2*700)
		defer data.Close()
		if err := all[rank].run(t.Context(), "passOn", 32, p.Set(), data, 700); err != nil {
			return err
		}
		if err := errors.Join(holds(data, 700, byte(o.From[0]+1)), sendToAll(t.Context(), all[rank], lasting[rank], options[rank], length), c.Barrier(t.Context())); err != nil {
			return err
		}
		return errors.Join(p.Close(), p.Close(), pool(c, need[rank]))
	}
	remakes(t, comms, rounds, remake)
	each(t, n, func(rank int) error {
		s, err := comms[rank].PipePool()
		if want := uint64(2 * (rounds + 1)); err == nil && s.Asked != want {
			err = fmt.Errorf("%d messages were to borrow, want %d", s.Asked, want)
		}
		return errors.Join(err, lasting[rank].Close(), pool(comms[rank], 0))
	})
}

// TestSharedPipesOfOthers makes pipes between two ranks, and the third has none and needs no memory for them.
// The first pipes too have slots as small as they must be for the least memory of those two.
func TestSharedPipesOfOthers(t *testing.T) {
	const n, perPeer = 3, 8
	options := make([]communicator.Options, n)
	options[1].PipePool = 2 << 20
	options[2].PipePool = 1
	comms := groupWith(t, options)
	each(t, n, func(rank int) error {
		o := communicator.PipeOptions{Shared: true, PerPeer: perPeer}
		if rank < 2 {
			o.To, o.From = []int{1 - rank}, []int{1 - rank}
		}
		p, err := comms[rank].Pipes(t.Context(), o)
		if err != nil {
			return err
		}
		s, err := comms[rank].PipePool()
		if err != nil || (s.Bytes == 0) != (rank == 2) {
			return fmt.Errorf("the memory of shared pipes says %+v (%v)", s, err)
		}
		if rank < 2 {
			// 1.5 MiB less some words are for eight ends of two slots each.
			if h := p.From(0, 1-rank).Handle(); h.SlotBytes != 64<<10 || h.SlotCount != 2 {
				return fmt.Errorf("pipes have %d slots of %d bytes", h.SlotCount, h.SlotBytes)
			}
		}
		return errors.Join(comms[rank].Barrier(t.Context()), p.Close())
	})
}

// TestSharedPipesPosted closes pipes after a message was posted, which borrowed a lot, and was not sent: more
// often than there are lots.
func TestSharedPipesPosted(t *testing.T) {
	const n, lots, length = 2, 2, 600_000
	for _, ports := range []bool{false, true} {
		t.Run(fmt.Sprintf("ports=%v", ports), func(t *testing.T) {
			testgroup.Run(t, n, communicator.Options{PipePool: 3 << 20}, func(ctx context.Context, c *communicator.Communicator) error {
				w := testerr.Must(newWorker(ctx, c))(t)
				o := toAllOthers(c.Rank(), n)
				o.Ports = ports
				o.Buffer = testerr.Must(c.Device().Alloc(1000))(t)
				for round := range uint64(2*lots + 1) {
					if ports {
						o.Service = testerr.Must(c.ProxyService(ctx, proxyservice.ServiceOptions{}))(t)
					}
					p, err := c.Pipes(ctx, o)
					testerr.Check(t, err)
					testerr.Check(t, errors.Join(sendToAll(ctx, w, p, o, length), w.run(ctx, "postMore", 32, p.Set(), length)))
					s, err := c.PipePool()
					if err != nil || s.Lots != lots || s.Lent != 1 || s.Refused != 0 {
						return fmt.Errorf("round %d: the memory of shared pipes says %+v (%v)", round, s, err)
					}
					if ports {
						testerr.Check(t, o.Service.Close())
					}
					testerr.Check(t, errors.Join(c.Barrier(ctx), p.Close(), p.Close(), pool(c, 0)))
				}
				return errors.Join(w.close(), o.Buffer.Close())
			})
		})
	}
}

// TestSharedPipesTooMany has a rank ask for more ends than its memory has room for. All ranks' errors name it,
// and the pipes that there are work as before.
func TestSharedPipesTooMany(t *testing.T) {
	const n = 3
	options := make([]communicator.Options, n)
	options[1].PipePool = 2 << 20
	comms := groupWith(t, options)
	all := workers(t, comms)
	pipes := make([]*communicator.Pipes, n)
	each(t, n, func(rank int) (err error) {
		pipes[rank], err = comms[rank].Pipes(t.Context(), toAllOthers(rank, n))
		return err
	})
	for round := range 2 {
		errs := outcomes(t, n, func(rank int) error {
			o := toAllOthers(rank, n)
			o.Size = channel.PipeSize{Slots: 4, SlotBytes: 64 << 10}
			o.PerPeer = 4
			_, err := comms[rank].Pipes(t.Context(), o)
			return err
		})
		failing(t, 1, errs[1], mscclgo.ErrInvalid, "communicator: make pipes to ranks [2 0] and from [0 2]", "rank 1",
			"the pool of shared pipes is too small: 16 ends need 2107392 bytes in one piece", "Options.PipePool, which is 2097152")
		for _, rank := range []int{0, 2} {
			failing(t, rank, errs[rank], mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer 1", rank), "the pool of shared pipes is too small")
		}
		each(t, n, func(rank int) error {
			o := toAllOthers(rank, n)
			return errors.Join(sendToAll(t.Context(), all[rank], pipes[rank], o, 700_000), comms[rank].Barrier(t.Context()))
		})
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
	each(t, n, func(rank int) error { return errors.Join(pipes[rank].Close(), pool(comms[rank], 0)) })
}

// TestWrongSharedPipes has ranks ask for what shared pipes cannot be.
func TestWrongSharedPipes(t *testing.T) {
	const n = 3
	comms := group(t, n, communicator.Options{})
	for name, c := range map[string]struct {
		spoil func(o *communicator.PipeOptions) // of rank 1
		of    int
		want  []string
	}{
		"at one end":  {func(o *communicator.PipeOptions) { o.Shared = false }, 2, []string{"rank 2, peer 1", "its Shared is false, this rank's true"}},
		"in a pool":   {func(o *communicator.PipeOptions) { o.Pool = upload(t, comms[1].Device(), 0, 6000) }, 1, []string{"rank 1", "and a pool is given"}},
		"other slots": {func(o *communicator.PipeOptions) { o.Size.Slots = 8 }, 2, []string{"rank 2, peer 1", "its pipes have 8 slots of 256 bytes, this rank's 4 of 256"}},
	} {
		refusedPipes(t, comms, name, communicator.PipeOptions{Shared: true}, c.spoil, c.of, c.want)
	}
	each(t, n, func(rank int) error { return pool(comms[rank], 0) })
}

// TestManySharedPipes has pipes between all pairs of many ranks, and some long messages among short ones.
func TestManySharedPipes(t *testing.T) {
	if testdev.CUDA() {
		t.Skip("so many ranks that wait for each other do not fit on GPUs")
	}
	n := testgroup.Many(t)
	for _, ports := range []bool{false, true} {
		if ports {
			n = min(n, 24) // each pipe has a connection
		}
		t.Run(fmt.Sprintf("ports=%v", ports), func(t *testing.T) {
			testgroup.Run(t, n, communicator.Options{}, func(ctx context.Context, c *communicator.Communicator) error {
				o := toAllOthers(c.Rank(), n)
				if ports {
					o.Service = testerr.Must(c.ProxyService(ctx, proxyservice.ServiceOptions{}))(t)
					o.Ports = true
				}
				p := testerr.Must(c.Pipes(ctx, o))(t)
				w := testerr.Must(newWorker(ctx, c))(t)
				h := p.To(0, o.To[0]).Handle()
				length := 5*h.SlotBytes + 1 // two slots, and three of a lot
				testerr.Check(t, sendToAll(ctx, w, p, o, length))
				s := testerr.Must(c.PipePool())(t)
				if c.Rank() == 0 {
					t.Logf("%d ranks: %d slots of %d bytes, and %d to borrow; %+v", n, h.SlotCount, h.SlotBytes, h.LotSlots, s)
				}
				want := uint64(2)
				if ports {
					want = 4 // at both ends
				}
				if s.Bytes != 64<<20 || s.Taken > s.ForEnds || s.Asked != want || s.Refused != 0 {
					return fmt.Errorf("the memory of shared pipes says %+v", s)
				}
				if o.Service != nil {
					testerr.Check(t, o.Service.Close())
				}
				return errors.Join(c.Barrier(ctx), w.close(), p.Close())
			})
		})
	}
}

// refusedPipes has ranks make pipes between neighbours with the options o, which rank 1 spoils: no rank makes pipes, and
// the error of rank `of` has the texts of want.
func refusedPipes(t *testing.T, comms []*communicator.Communicator, name string, o communicator.PipeOptions, spoil func(*communicator.PipeOptions), of int, want []string) {
	errs := outcomes(t, len(comms), func(rank int) error {
		mine := neighbours(rank, len(comms))
		mine.Shared, mine.Lazy = o.Shared, o.Lazy
		if rank == 1 {
			spoil(&mine)
		}
		_, err := comms[rank].Pipes(t.Context(), mine)
		return err
	})
	t.Run(name, func(t *testing.T) { failing(t, of, errs[of], mscclgo.ErrInvalid, want...) })
	if slices.Contains(errs, nil) {
		t.Errorf("%s: the errors are %v", name, errs)
	}
}
