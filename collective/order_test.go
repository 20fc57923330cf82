package collective_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
)

// chain is an all-reduce whose input is the output of the one before, on any stream, so
// that the result shows whether all were done in order.
type chain struct {
	*member
	streams []*gpu.Stream
	bufs    [2]*gpu.Buffer
	calls   int
	graphs  []*gpu.Graph
}

const chainCount = 3000

func newChain(m *member, streams int) (*chain, error) {
	c := &chain{member: m}
	for range streams {
		s, err := m.comm.Device().NewStream()
		if err != nil {
			return nil, err
		}
		c.streams = append(c.streams, s)
	}
	values := make([]int32, chainCount)
	for i := range values {
		values[i] = int32(i + m.comm.Rank())
	}
	for i := range c.bufs {
		var err error
		if c.bufs[i], err = gpu.Upload(m.comm.Device(), values); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// call makes the next call.
func (c *chain) call(s *gpu.Stream) error {
	in, out := c.bufs[c.calls%2], c.bufs[1-c.calls%2]
	c.calls++
	return c.runner.AllReduce(s, out, in, chainCount, collective.I32, collective.Sum)
}

// settle waits until no rank has work on a GPU. Where ranks share one, making a graph waits for
// all that runs there, which may wait for the rank that makes it.
func (c *chain) settle() error {
	if !testdev.CUDA() || c.comm.Internal().Sharers() == 1 {
		return nil
	}
	for _, s := range c.streams {
		if err := c.comm.Synchronize(c.ctx, s); err != nil {
			return err
		}
	}
	return c.comm.Barrier(c.ctx)
}

// check compares the last output with what the calls in order leave.
func (c *chain) check() error {
	for _, s := range c.streams {
		if err := c.comm.Synchronize(c.ctx, s); err != nil {
			return err
		}
	}
	got := make([]int32, chainCount)
	if err := gpu.CopyOut(got, c.bufs[c.calls%2]); err != nil {
		return err
	}
	ranks := int32(c.comm.Size())
	for i, v := range got {
		want := int32(i)*ranks + ranks*(ranks-1)/2
		for range c.calls - 1 {
			want *= ranks
		}
		if v != want {
			return fmt.Errorf("element %d after %d calls is %d, want %d", i, c.calls, v, want)
		}
	}
	return nil
}

func (c *chain) close() error {
	var errs []error
	for _, g := range c.graphs {
		errs = append(errs, g.Close())
	}
	for _, s := range c.streams {
		errs = append(errs, s.Close())
	}
	for _, b := range c.bufs {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// TestOrder makes calls on several streams at random, plain and in graphs, and closes
// streams between. No stream waits for another but by the calls' own order.
func TestOrder(t *testing.T) {
	for _, algorithm := range []string{"oneShotLL16", "pushed"} {
		t.Run(algorithm, func(t *testing.T) {
			runMembers(t, 2, collective.Options{Tuning: only(collective.AllReduce, algorithm), Scratch: 4 << 10}, func(m *member) error {
				c, err := newChain(m, 3)
				if err != nil {
					return err
				}
				random := rand.New(rand.NewPCG(1, 2)) // alike on all ranks
				for range 60 {
					i := random.IntN(len(c.streams))
					s := c.streams[i]
					switch random.IntN(6) {
					case 0: // a graph of two calls, launched on another stream
						if err := errors.Join(c.settle(), s.BeginCapture()); err != nil {
							return err
						}
						err := errors.Join(c.call(s), c.call(s))
						g, end := s.EndCapture()
						if err := errors.Join(err, end, c.settle()); err != nil {
							return err
						}
						c.graphs = append(c.graphs, g)
						if err := g.Launch(c.streams[random.IntN(len(c.streams))]); err != nil {
							return err
						}
						// Once more, from where it began.
						if err := g.Launch(c.streams[random.IntN(len(c.streams))]); err != nil {
							return err
						}
						c.calls += 2
					case 1: // a stream goes and another comes
						if err := s.Close(); err != nil {
							return err
						}
						if c.streams[i], err = m.comm.Device().NewStream(); err != nil {
							return err
						}
					default:
						if err := c.call(s); err != nil {
							return err
						}
					}
				}
				return errors.Join(c.check(), c.close())
			})
		})
	}
}

// TestTwoRunners alternates runners of one communicator, each on a stream of its own.
func TestTwoRunners(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, err := newChain(m, 2)
		if err != nil {
			return err
		}
		other, err := collective.New(m.ctx, m.comm, collective.Options{Tuning: only(collective.AllReduce, "pushed"), Scratch: 8 << 10})
		if err != nil {
			return err
		}
		runners := []*collective.Runner{m.runner, other}
		for i := range 20 {
			m.runner = runners[i%2]
			if err := c.call(c.streams[i%2]); err != nil {
				return err
			}
		}
		m.runner = runners[0]
		return errors.Join(c.check(), c.close(), other.Close(m.ctx))
	})
}

// TestCaptureInBetween calls on a second stream while the one that has the last call
// captures: it cannot be waited for then, so that is an error, and nothing is queued.
func TestCaptureInBetween(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, err := newChain(m, 2)
		if err != nil {
			return err
		}
		if err := c.call(c.streams[0]); err != nil {
			return err
		}
		if err := c.streams[0].BeginCapture(); err != nil {
			return err
		}
		if err := c.call(c.streams[1]); !errors.Is(err, mscclgo.ErrInvalid) || !strings.Contains(err.Error(), "captures") {
			return fmt.Errorf("a call beside a capture: %v", err)
		}
		c.calls--
		g, err := c.streams[0].EndCapture()
		if err != nil {
			return err
		}
		c.graphs = append(c.graphs, g)
		if err := c.call(c.streams[1]); err != nil {
			return err
		}
		return errors.Join(c.check(), c.close())
	})
}

// TestCaptureAbandoned closes the stream that has the last call while it captures, and calls on others:
// the capture never runs, and the call before it is waited for.
func TestCaptureAbandoned(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, err := newChain(m, 2)
		if err != nil {
			return err
		}
		for range 3 {
			s := c.streams[0]
			if err := errors.Join(c.call(s), c.call(s), c.settle(), s.BeginCapture()); err != nil {
				return err
			}
			before := c.calls
			if err := errors.Join(c.call(s), s.Close()); err != nil {
				return err
			}
			c.calls = before
			if c.streams[0], err = m.comm.Device().NewStream(); err != nil {
				return err
			}
			if err := errors.Join(c.settle(), c.call(c.streams[1])); err != nil {
				return err
			}
		}
		return errors.Join(c.check(), c.close())
	})
}

// TestCaptureForks captures calls on two streams while a call goes on whose stream was closed, for
// which the graph waits.
func TestCaptureForks(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, err := newChain(m, 3)
		if err != nil {
			return err
		}
		s, side := c.streams[0], c.streams[1]
		fork, err := m.comm.Device().NewEvent()
		if err != nil {
			return err
		}
		// The graph's calls are not the first of their kind, which would wait.
		if err := errors.Join(c.call(c.streams[2]), c.call(c.streams[2]), c.settle(), c.streams[2].Close(), s.BeginCapture()); err != nil {
			return err
		}
		err = errors.Join(c.call(s), s.Record(fork), side.Wait(fork), c.call(side), side.Record(fork), s.Wait(fork))
		g, end := s.EndCapture()
		if err := errors.Join(err, end); err != nil {
			return err
		}
		c.streams, c.graphs = c.streams[:2], append(c.graphs, g)
		return errors.Join(g.Launch(c.streams[1]), c.call(c.streams[0]), c.check(), fork.Close(), c.close())
	})
}

// TestFirstUseInCapture captures a call that nobody made before.
func TestFirstUseInCapture(t *testing.T) {
	runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
		c, err := newChain(m, 1)
		if err != nil {
			return err
		}
		s := c.streams[0]
		if err := s.BeginCapture(); err != nil {
			return err
		}
		err = c.call(s)
		g, end := s.EndCapture()
		if err := errors.Join(err, end); err != nil {
			return err
		}
		c.graphs = append(c.graphs, g)
		if err := g.Launch(s); err != nil {
			return err
		}
		return errors.Join(c.check(), c.close())
	})
}

// TestDifferentCalls has the ranks make second calls that differ.
func TestDifferentCalls(t *testing.T) {
	for name, second := range map[string]func(m *member, s *gpu.Stream, b [2]*gpu.Buffer) error{
		"count": func(m *member, s *gpu.Stream, b [2]*gpu.Buffer) error {
			return m.runner.AllReduce(s, b[1], b[0], 99+uint64(m.comm.Rank()), collective.I32, collective.Sum)
		},
		"type": func(m *member, s *gpu.Stream, b [2]*gpu.Buffer) error {
			return m.runner.AllReduce(s, b[1], b[0], 100, []collective.Type{collective.I32, collective.F32}[m.comm.Rank()], collective.Sum)
		},
		"kind": func(m *member, s *gpu.Stream, b [2]*gpu.Buffer) error {
			if m.comm.Rank() == 0 {
				return m.runner.AllReduce(s, b[1], b[0], 100, collective.I32, collective.Sum)
			}
			return m.runner.SendReceive(s, b[1], b[0], 100, collective.I32)
		},
	} {
		t.Run(name, func(t *testing.T) {
			failed := make(chan error, 2)
			runMembers(t, 2, collective.Options{Scratch: 4 << 10}, func(m *member) error {
				c, err := newChain(m, 1)
				if err != nil {
					return err
				}
				s := c.streams[0]
				if err := m.runner.AllReduce(s, c.bufs[1], c.bufs[0], 100, collective.I32, collective.Sum); err != nil {
					return err
				}
				err = errors.Join(second(m, s, c.bufs), m.comm.Synchronize(m.ctx, s))
				failed <- err
				if err == nil {
					return errors.New("no error")
				}
				// Later calls, which nobody made before, name the other rank too.
				<-m.comm.Done()
				err = m.runner.Load(m.ctx, collective.Call{Count: 7})
				var typed *mscclgo.Error
				if !errors.As(err, &typed) || typed.Rank != m.comm.Rank() || typed.Peer != 1-m.comm.Rank() {
					return fmt.Errorf("a call in a group that has failed: %w", err)
				}
				return errors.Join(c.close(), m.runner.Close(m.ctx), errDiffer)
			}, errDiffer)
			told := errors.Join(<-failed, <-failed)
			if !errors.Is(told, mscclgo.ErrInvalid) || !strings.Contains(told.Error(), "100 i32") || !strings.Contains(told.Error(), "call 2: rank") {
				t.Errorf("the ranks say %v", told)
			}
		})
	}
}

// errDiffer is what the ranks of TestDifferentCalls end with.
var errDiffer = errors.New("the calls differ")
