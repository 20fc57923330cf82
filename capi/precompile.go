package main

// #include "process.h"
import "C"

import (
	"context"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/precompile"
)

//export capi_precompile
func capi_precompile(c *C.mscclgo_precompile_options) C.mscclgo_status {
	return call(func() error {
		if c == nil {
			c = &C.mscclgo_precompile_options{}
		}
		readEnvironment()
		names := precompile.Names{
			Archs: text(c.architectures), Kinds: text(c.collectives), Types: text(c.types),
			Ops: text(c.operations), Ranks: text(c.ranks),
		}
		archs, o, err := names.Parse()
		if err != nil {
			return invalid("precompile", "%v", err)
		}
		o.SeveralHosts = c.several_hosts != 0
		for _, arch := range archs {
			if err := collective.Precompile(context.Background(), arch, o); err != nil {
				return err
			}
		}
		return nil
	})
}
