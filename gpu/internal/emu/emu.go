// Package emu emulates a GPU on the CPU. It implements [backend.Driver]. Device memory
// is shared memory that other processes can map, a module is a shared object that
// package devicecode compiles from a CUDA source, and a block runs on an OS thread with
// a fiber for each of its threads.
//
// Addresses, sharing by descriptor, streams, events, captured work, barriers, warp
// functions, shared memory and atomics behave as on a GPU. So does the number of
// resident blocks: kernels that deadlock on a GPU for lack of room do so here. A kernel
// that traps, faults or gets stuck fails its stream and not the process.
//
// There is one limit: a loop that waits for memory to change, and calls no function of
// CUDA or of the library, keeps the other threads of its block from running.
package emu

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu/internal/backend"
	"github.com/mscclgo/mscclgo/internal/hostid"
)

// Environment variables.
const (
	devicesVariable = "MSCCLGO_EMU_DEVICES" // how many emulated devices there are
	memoryVariable  = "MSCCLGO_EMU_MEMORY"  // bytes of memory of each
)

// The shape of an emulated device.
const (
	defaultDevices = 8
	mostDevices    = 64
	defaultMemory  = 8 << 30
	processors     = 16
	blocksPerSM    = 2
	warpSize       = 32
	mostThreads    = 1024
	mostShared     = 227 << 10
)

// driver has no state: the devices follow from the environment and the machine.
type driver struct{}

// Driver returns the driver of the emulated devices. MSCCLGO_EMU_DEVICES is their
// number, by default 8, and MSCCLGO_EMU_MEMORY the bytes of memory of each, by default
// 8 GiB.
func Driver() backend.Driver { return driver{} }

func (driver) List() ([]backend.Info, error) {
	const op = "emu: list devices"
	count, err := setting(op, devicesVariable, defaultDevices, mostDevices)
	if err != nil {
		return nil, err
	}
	memory, err := setting(op, memoryVariable, defaultMemory, 1<<46)
	if err != nil {
		return nil, err
	}
	host, err := hostid.Get()
	if err != nil {
		return nil, err
	}
	infos := make([]backend.Info, count)
	for i := range infos {
		infos[i] = info(i, memory, host)
	}
	return infos, nil
}

func (d driver) Open(ordinal int) (backend.Device, error) {
	infos, err := d.List()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= len(infos) {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, fmt.Sprintf("emu: open emu:%d", ordinal),
			"there are %d emulated devices; set %s to have more", len(infos), devicesVariable)
	}
	return newDevice(ordinal, infos)
}

// setting returns the number that an environment variable is set to, or otherwise.
func setting(op, name string, otherwise, most uint64) (uint64, error) {
	text := os.Getenv(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > most {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%s is %q, not a number from 0 to %d", name, text, most)
	}
	return n, nil
}

func info(ordinal int, memory uint64, host string) backend.Info {
	name := fmt.Sprintf("emu:%d", ordinal)
	digest := sha256.Sum256([]byte(name + "\n" + host))
	return backend.Info{
		Name:               name,
		Model:              "emulated GPU on " + runtime.GOARCH,
		UUID:               [16]byte(digest[:16]),
		Arch:               "emu",
		Multiprocessors:    processors,
		MaxBlocksPerSM:     blocksPerSM,
		MaxThreadsPerBlock: mostThreads,
		MaxSharedPerBlock:  mostShared,
		WarpSize:           warpSize,
		TotalMemory:        memory,
		CooperativeLaunch:  true,
		StreamMemoryOps:    true,
		RDMAOrdered:        true,
		DescriptorExport:   true,
		L2Bytes:            1 << 20,
		MaxThreadsPerSM:    blocksPerSM * mostThreads,
		MemoryGranularity:  uint64(os.Getpagesize()),
		DriverVersion:      fmt.Sprintf("ABI %d", abiVersion),
	}
}
