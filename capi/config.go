package capi

// #include "process.h"
import "C"

import (
	"strings"
	"unsafe"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/registeredmem"
)

// firstConfig is the size of mscclgo_group_config in the first header that had it. The struct has no
// padding, which would be read as values once fields take its place.
const firstConfig = 56

var _ [unsafe.Sizeof(C.mscclgo_group_config{}) - firstConfig]byte // it only grows

// readConfig copies a config as large as the header of the program has it. What that lacks is zero.
func readConfig(op string, from *C.mscclgo_group_config) (c C.mscclgo_group_config, err error) {
	size := uint64(from.bytes)
	if size < firstConfig || size > 1<<16 {
		return c, invalid(op, "the config's bytes are %d, and must be sizeof(mscclgo_group_config), %d", size, unsafe.Sizeof(c))
	}
	given, err := array(op, (*byte)(unsafe.Pointer(from)), int(size))
	if err != nil {
		return c, err
	}
	known := copy(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)), given)
	for _, b := range given[known:] {
		if b != 0 {
			return c, mscclgo.Errorf(mscclgo.ErrUnsupported, "mscclgo: "+op, "the config has what this library does not know: install one of the header's version")
		}
	}
	return c, nil
}

// configure sets what a config, which may be NULL, has for a communicator, and returns what it has
// for collectives.
func configure(op string, from *C.mscclgo_group_config, o *communicator.Options) (collective.Options, error) {
	if from == nil {
		return collective.Options{}, nil
	}
	c, err := readConfig(op, from)
	if err != nil {
		return collective.Options{}, err
	}
	if names := text(c.transports); names != "" {
		if o.Transports, err = registeredmem.ParseTransports(names); err != nil {
			return collective.Options{}, err
		}
	}
	if c.trace_events > 1<<30 { // which a communicator refuses, as an int too
		return collective.Options{}, invalid(op, "trace_events are %d, and a rank keeps at most %d", uint64(c.trace_events), 1<<24)
	}
	o.Trace, o.TraceEvents = text(c.trace), int(c.trace_events)
	o.FindDeadlocks = c.find_deadlocks != 0
	o.PipePool, o.Host = uint64(c.pipe_pool_bytes), text(c.host)
	return collectivesOf(op, &c)
}

// configurePart returns what a config for a part of a group has for collectives.
func configurePart(op string, from *C.mscclgo_group_config) (collective.Options, error) {
	c, err := readConfig(op, from)
	if err != nil {
		return collective.Options{}, err
	}
	if c.transports != nil || c.trace != nil || c.trace_events != 0 || c.find_deadlocks != 0 || c.pipe_pool_bytes != 0 || c.host != nil {
		return collective.Options{}, invalid(op, "a part takes the transports, the trace, find_deadlocks, pipe_pool_bytes and the host from the group that is split: leave them 0")
	}
	return collectivesOf(op, &c)
}

// collectivesOf returns what a config has for collectives.
func collectivesOf(op string, c *C.mscclgo_group_config) (o collective.Options, err error) {
	if c.max_blocks < 0 {
		return o, invalid(op, "max_blocks is %d, and must not be negative", int(c.max_blocks))
	}
	o.MaxBlocks, o.Scratch = int(c.max_blocks), uint64(c.collective_scratch_bytes)
	if c.tuning != nil {
		if o.Tuning, err = collective.ReadTuning(strings.NewReader(C.GoString(c.tuning))); err != nil {
			return o, err
		}
	}
	return o, nil
}
