package capi

// #include "process.h"
import "C"

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/precompile"
)

func (c *call) precompile(o *C.mscclgo_precompile_options) error {
	if o == nil {
		o = &C.mscclgo_precompile_options{}
	}
	readEnvironment()
	names := precompile.Names{
		Archs: text(o.architectures), Kinds: text(o.collectives), Types: text(o.types),
		Ops: text(o.operations), Ranks: text(o.ranks),
	}
	archs, options, err := names.Parse()
	if err != nil {
		return invalid("precompile", "%v", err)
	}
	options.SeveralHosts = o.several_hosts != 0
	for _, arch := range archs {
		if err := collective.Precompile(context.Background(), arch, options); err != nil {
			return err
		}
	}
	return nil
}
