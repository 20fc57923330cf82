package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

//go:embed allreduce.cu
var source []byte

// buffer is memory of this rank that all ranks reach.
type buffer struct {
	*gpu.Buffer
	memory *communicator.PeerMemory
	peers  devicecode.PeerMemory // where all ranks are on one host
}

// share makes a rank's buffer known to all. Collective.
func share(ctx context.Context, comm *communicator.Communicator, b *gpu.Buffer) (buffer, error) {
	memory, err := comm.Share(ctx, b)
	s := buffer{Buffer: b, memory: memory}
	if err == nil && len(comm.Hosts()) == 1 {
		s.peers, err = memory.Handle()
	}
	return s, err
}

// allReducer launches the kernels of allreduce.cu.
type allReducer struct {
	comm    *communicator.Communicator
	group   devicecode.Group
	module  *gpu.Module
	threads int // of a block
	blocks  int // at most
}

// newAllReducer loads the kernels. Collective.
func newAllReducer(ctx context.Context, comm *communicator.Communicator, blocks, threads int) (*allReducer, error) {
	group, err := comm.Group(ctx)
	if err != nil {
		return nil, err
	}
	module, err := devicecode.Load(ctx, comm.Device(), "allreduce.cu", source, devicecode.Options{})
	if err != nil {
		return nil, err
	}
	return &allReducer{comm: comm, group: group, module: module, blocks: blocks, threads: threads}, nil
}

// The sizes from which another algorithm is the better choice, in bytes.
const (
	twoShotFrom = 32 << 10
	directFrom  = 512 << 10
)

// fits says whether an algorithm's packets fit into the scratch; see the inbox
// of allreduce.cu.
func (a *allReducer) fits(algo string, bytes uint64) bool {
	ranks := uint64(a.comm.Size())
	inbox := a.group.ScratchSize / 2 / ranks / 16 // packets, of 8 bytes each
	words := (bytes + 7) / 8
	switch algo {
	case "oneShot":
		return words <= inbox
	case "twoShot":
		return 2*((words+ranks-1)/ranks) <= inbox
	}
	return true
}

// choose gives the algorithm for a size.
func (a *allReducer) choose(bytes uint64) string {
	switch {
	case bytes < twoShotFrom && a.fits("oneShot", bytes):
		return "oneShot"
	case bytes < directFrom && a.fits("twoShot", bytes):
		return "twoShot"
	}
	return "direct"
}

// launch queues the all-reduce of count elements of a type, with an operation;
// in and out may be the same.
func (a *allReducer) launch(s *gpu.Stream, algo, typ, op string, in, out buffer, count, bytes uint64) error {
	if !a.fits(algo, bytes) {
		return fmt.Errorf("%s of %d bytes does not fit into a scratch of %d bytes; ask for more (communicator.Options.Scratch)", algo, bytes, a.group.ScratchSize)
	}
	kernel, err := a.module.Kernel(algo + "_" + typ + "_" + op)
	if err != nil {
		return err
	}
	blocks, err := a.grid(kernel, bytes)
	if err != nil {
		return err
	}
	return kernel.Launch(s, gpu.Blocks(blocks, a.threads), a.group, in.peers, out.peers, count)
}

// grid gives the number of blocks: one for each 16 bytes of each thread, but no
// more than fit at once, since they wait for their peers'.
func (a *allReducer) grid(kernel *gpu.Kernel, bytes uint64) (int, error) {
	fit, err := a.comm.MaxBlocks(kernel, a.threads, 0)
	if err != nil {
		return 0, err
	}
	perBlock := uint64(16 * a.threads)
	return int(min((bytes+perBlock-1)/perBlock, uint64(a.blocks), uint64(fit))), nil
}
