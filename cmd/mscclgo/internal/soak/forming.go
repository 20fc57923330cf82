package main

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mscclgo/mscclgo/bootstrap"
	"github.com/mscclgo/mscclgo/internal/handshake"
)

// The faults of this file keep a group from forming whose rank 0 opens the rendezvous.
const (
	fewAtRankZero = "few at rank 0"
	sizesDiffer   = "sizes differ"
)

// forms is the bound of such faults: rank 0 waits for 2 s until all have come and heard.
const forms = 3 * time.Second

// lateStart is how much later than its process a rank comes without which the others can do nothing.
const lateStart = 500 * time.Millisecond

// hosted returns the id of a group whose rank 0 opens the rendezvous.
func (r *run) hosted() (bootstrap.UniqueID, error) {
	free, err := bootstrap.NewRendezvous("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		return bootstrap.UniqueID{}, err
	}
	defer free.Close()
	return bootstrap.NewUniqueID(free.ID().Addr())
}

// otherSize returns a world size for the victim that is not the others', and that it can have.
func (r *run) otherSize() string {
	random := rand.New(rand.NewPCG(r.Seed, 12))
	least := max(2, r.Victim+1)
	if least >= r.ranks {
		return strconv.Itoa(r.ranks + 1)
	}
	size := least + random.IntN(r.ranks+1-least)
	if size == r.ranks {
		size++
	}
	return strconv.Itoa(size)
}

// keepFromForming commits such a fault, before the rank connects.
func (t *task) keepFromForming() error {
	if t.Fault != fewAtRankZero && t.Fault != sizesDiffer {
		return nil
	}
	rank, _ := strconv.Atoi(os.Getenv("RANK"))
	if rank != 0 && rank != t.Victim {
		return nil
	}
	time.Sleep(lateStart)
	if rank != t.Victim {
		return nil
	}
	say(report{Event: "fault"})
	if t.Fault != fewAtRankZero {
		return nil
	}
	ranks, err := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	if err != nil {
		return fmt.Errorf("WORLD_SIZE: %w", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the poller has descriptors of its own from then on
	if err != nil {
		return err
	}
	ln.Close()
	// At least so many that it can listen and accept one, and too few for the group.
	few := uint64(handshake.Descriptors() + 2 + rand.New(rand.NewPCG(t.Seed, 13)).IntN(2*ranks+1))
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few})
}
