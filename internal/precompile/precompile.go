// Package precompile reads for what the kernels of collectives are to be compiled beforehand, as commands
// and the C library are told it: by names with commas between.
package precompile

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/gpu"
)

// Names are what to compile for, in the words of package collective.
// [collective.PrecompileOptions] says what an empty string means.
type Names struct {
	Archs string // empty means the architectures of this machine's GPUs
	Kinds string
	Types string
	Ops   string
	Ranks string
}

// Parse returns the architectures, and the options for each.
func (n Names) Parse() (archs []string, o collective.PrecompileOptions, err error) {
	err = cmp.Or(
		each(n.Kinds, collective.ParseKind, &o.Kinds), each(n.Types, collective.ParseType, &o.Types), each(n.Ops, collective.ParseOp, &o.Ops),
		each(n.Ranks, strconv.Atoi, &o.Ranks), each(n.Archs, func(name string) (string, error) { return name, nil }, &archs),
	)
	if err == nil && len(archs) == 0 {
		archs, err = here()
	}
	return archs, o, err
}

// each parses names with commas between.
func each[T any](names string, parse func(string) (T, error), all *[]T) error {
	for name := range strings.SplitSeq(names, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		v, err := parse(name)
		if err != nil {
			return err
		}
		*all = append(*all, v)
	}
	return nil
}

// here returns the architectures of this machine's GPUs.
func here() (archs []string, err error) {
	infos, err := gpu.List()
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		if i.Arch != devicecode.ArchEmu && !slices.Contains(archs, i.Arch) {
			archs = append(archs, i.Arch)
		}
	}
	if len(archs) == 0 {
		return nil, errors.New("there is no GPU here: name the architectures, such as sm_90, or emu")
	}
	return archs, nil
}
