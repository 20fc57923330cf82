package communicator_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/connection/ethernet"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/test/testdev"
	"github.com/mscclgo/mscclgo/registeredmem"
	"github.com/mscclgo/mscclgo/semaphore"
)

// TestConnect has rank 0's host write into rank 1's memory and tell it by a word
// that rank 1's stream awaits.
func TestConnect(t *testing.T) {
	const size, rounds = 100_000, 5
	comms := group(t, 2, communicator.Options{})
	each(t, 2, func(rank int) error {
		c, ctx := comms[rank], t.Context()
		data := upload(t, c.Device(), 0, size)
		word := upload(t, c.Device(), 0, 8)
		peers, err := c.Share(ctx, data)
		if err != nil {
			return err
		}
		words, err := c.Share(ctx, word)
		if err != nil {
			return err
		}
		conn, err := c.Connect(ctx, 1-rank, 7)
		if err != nil {
			return err
		}
		stream, err := c.Device().NewStream()
		if err != nil {
			return err
		}
		defer stream.Close()
		for round := range uint64(rounds) {
			want := bytes.Repeat([]byte{byte(round + 1)}, size)
			if rank == 0 {
				if err := gpu.CopyIn(data, want); err != nil {
					return err
				}
				if err := conn.Write(peers.Memories[1], 1, peers.Memories[0], 1, size-1); err != nil {
					return err
				}
				if err := conn.UpdateAndSync(words.Memories[1], 0, round, round+1); err != nil {
					return err
				}
				if err := conn.Flush(ctx); err != nil {
					return err
				}
			} else {
				if c.Device().Info().StreamMemoryOps {
					if err := stream.WaitValue64(word, 0, round+1, gpu.GreaterOrEqual); err != nil {
						return err
					}
					if err := c.Synchronize(ctx, stream); err != nil {
						return err
					}
				} else if err := await(word, round+1); err != nil {
					return err
				}
				got := make([]byte, size)
				if err := gpu.CopyOut(got, data); err != nil {
					return err
				}
				want[0] = 0
				if diff := cmp.Diff(want, got); diff != "" {
					return fmt.Errorf("round %d (-want +got):\n%s", round, diff)
				}
			}
			if err := c.Barrier(ctx); err != nil {
				return err
			}
		}
		return conn.Close()
	})
}

// await polls a word until it has the value.
func await(word *gpu.Buffer, value uint64) error {
	deadline := time.Now().Add(patience)
	for got := make([]uint64, 1); got[0] != value; {
		if time.Now().After(deadline) {
			return fmt.Errorf("the word is %d, want %d", got[0], value)
		}
		if err := gpu.CopyOut(got, word); err != nil {
			return err
		}
	}
	return nil
}

// TestFlushDeadline flushes what takes longer than the deadline.
func TestFlushDeadline(t *testing.T) {
	size, writes := 8<<20, 100
	if testdev.CUDA() {
		size, writes = 256<<20, 100
	}
	comms := group(t, 2, communicator.Options{})
	each(t, 2, func(rank int) error {
		c := comms[rank]
		peers, err := c.Share(t.Context(), upload(t, c.Device(), 0, size))
		if err != nil {
			return err
		}
		conn, err := c.Connect(t.Context(), 1-rank, 0)
		if err != nil {
			return err
		}
		defer conn.Close()
		if rank == 0 {
			for range writes {
				if err := conn.Write(peers.Memories[1], 0, peers.Memories[0], 0, uint64(size)); err != nil {
					return err
				}
			}
			short, cancel := context.WithTimeout(t.Context(), time.Microsecond)
			defer cancel()
			failing(t, rank, conn.Flush(short), mscclgo.ErrTimeout, "rank 0, peer 1")
			if err := conn.Flush(t.Context()); err != nil {
				return err
			}
			failing(t, rank, conn.Write(peers.Memories[1], uint64(size), peers.Memories[0], 0, 1), mscclgo.ErrInvalid)
		}
		return c.Barrier(t.Context())
	})
}

func TestConnectAlone(t *testing.T) {
	comms := group(t, 2, communicator.Options{Timeout: time.Second})
	_, err := comms[0].Connect(t.Context(), 1, 0)
	failing(t, 0, err, mscclgo.ErrTimeout, "communicator: connect to rank 1 (rank 0, peer 1)", "both call Connect with one tag")
	_, err = comms[0].Connect(t.Context(), 2, 0)
	failing(t, 0, err, mscclgo.ErrInvalid, "rank 2")
}

func TestConnectInvalid(t *testing.T) {
	_, own := officeGroup(t, 2, communicator.Options{})
	for name, comms := range map[string][]*communicator.Communicator{
		"mapped":        group(t, 2, communicator.Options{}),
		"SHM":           group(t, 2, communicator.Options{Transports: registeredmem.SHM}),
		"Ethernet":      group(t, 2, communicator.Options{Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}}),
		"own bootstrap": own,
	} {
		t.Run(name, func(t *testing.T) {
			for _, peer := range []int{-1, 2, 99} {
				_, err := comms[0].Connect(t.Context(), peer, 1)
				failing(t, 0, err, mscclgo.ErrInvalid, fmt.Sprintf("connect to rank %d (rank 0)", peer))
			}
			_, err := comms[0].Connect(t.Context(), 1, 1<<63)
			failing(t, 0, err, mscclgo.ErrInvalid, "the tag")
		})
	}
}

// TestConnectAgain has Connects that end without the peer, and then one of both ranks.
func TestConnectAgain(t *testing.T) {
	for name, o := range map[string]communicator.Options{
		"mapped":   {},
		"SHM":      {Transports: registeredmem.SHM},
		"Ethernet": {Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}},
	} {
		t.Run(name, func(t *testing.T) {
			comms := group(t, 2, o)
			for _, rank := range []int{0, 0, 1} {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				_, err := comms[rank].Connect(ctx, 1-rank, 5)
				cancel()
				failing(t, rank, err, mscclgo.ErrTimeout)
			}
			for range 2 {
				each(t, 2, func(rank int) error {
					conn, err := comms[rank].Connect(t.Context(), 1-rank, 5)
					if err != nil {
						return err
					}
					return errors.Join(conn.Flush(t.Context()), comms[rank].Barrier(t.Context()), conn.Close())
				})
			}
		})
	}
}

// TestConnectFailsBeforeTheTransport has one rank fail before it dials, or before it takes a connection: the
// other, which waits for that, hears of it at once.
func TestConnectFailsBeforeTheTransport(t *testing.T) {
	for name, o := range map[string]communicator.Options{
		"SHM":      {Transports: registeredmem.SHM},
		"Ethernet": {Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}},
	} {
		for fails := range 2 {
			t.Run(fmt.Sprint(name, " rank ", fails), func(t *testing.T) {
				comms := group(t, 2, o)
				errs := outcomes(t, 2, func(rank int) error {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					if rank == fails {
						return communicator.ConnectHalf(ctx, comms[rank], 1-rank, 5, errors.New("no room"))
					}
					_, err := comms[rank].Connect(ctx, 1-rank, 5)
					return err
				})
				failing(t, 1-fails, errs[1-fails], mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer %d", 1-fails, fails), "its part failed", "no room")
				each(t, 2, func(rank int) error { // again
					conn, err := comms[rank].Connect(t.Context(), 1-rank, 5)
					if err != nil {
						return err
					}
					return errors.Join(comms[rank].Barrier(t.Context()), conn.Close())
				})
			})
		}
	}
}

// TestConnectFailsOnOne has one rank without memory for a connection, which dials or is dialled: the other hears
// of it at once.
func TestConnectFailsOnOne(t *testing.T) {
	for greedy := range 2 {
		t.Run(fmt.Sprint("rank ", greedy), func(t *testing.T) {
			options := make([]communicator.Options, 2)
			for rank := range options {
				options[rank] = communicator.Options{Transports: registeredmem.Ethernet, Ethernet: ethernet.Options{Interface: "lo"}}
			}
			options[greedy].Ethernet.Staging = 1 << 50
			comms := groupWith(t, options)
			start := time.Now()
			errs := outcomes(t, 2, func(rank int) error {
				_, err := comms[rank].Connect(t.Context(), 1-rank, 5)
				return err
			})
			failing(t, greedy, errs[greedy], mscclgo.ErrSystem)
			failing(t, 1-greedy, errs[1-greedy], mscclgo.ErrRemote, fmt.Sprintf("rank %d, peer %d", 1-greedy, greedy), "its part failed")
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("after %v", took)
			}
			each(t, 2, func(rank int) error { return comms[rank].Barrier(t.Context()) })
		})
	}
}

// TestHost2HostHearsOfFailure has a host wait for a signal of one that fails the group: it hears why.
func TestHost2HostHearsOfFailure(t *testing.T) {
	comms := group(t, 2, communicator.Options{})
	each(t, 2, func(rank int) error {
		c := comms[rank]
		word := upload(t, c.Device(), 0, semaphore.Host2HostBytes)
		peers, err := c.Share(t.Context(), word)
		if err != nil {
			return err
		}
		conn, err := c.Connect(t.Context(), 1-rank, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		s, err := semaphore.NewHost2Host(conn, word, peers.Memories[1-rank], 0)
		if err != nil {
			return err
		}
		if rank == 1 {
			c.Abort(errors.New("out of flour"))
			return nil
		}
		failing(t, 0, s.Wait(t.Context()), mscclgo.ErrAborted, "rank 0, peer 1", "out of flour")
		return nil
	})
}
