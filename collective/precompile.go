package collective

import (
	"context"
	"fmt"
	"slices"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/communicator"
	"github.com/mscclgo/mscclgo/internal/keep"
)

// PrecompileOptions say which kernels [Precompile] compiles. The zero value is right for groups of up to 8
// ranks on one host that reduce with sums, as training and inference do.
type PrecompileOptions struct {
	// Kinds are the collectives; none means all. With SendReceive, and with AllToAll, come the kernels of a
	// [Group], which all-to-alls with counts use too.
	Kinds []Kind
	// Types and Ops are what kernels that reduce are compiled for, each type with each operation; none means
	// F32, F16 and BF16, and Sum. The others take any type.
	Types []Type
	Ops   []Op
	// Ranks are sizes of groups, of parts of Split too; none means 4 and 8. Kernels for up to 4 ranks serve all
	// these, those for up to 8 the numbers up to 72, and there is a third kind for more.
	Ranks []int
	// SeveralHosts adds what groups on several hosts need.
	SeveralHosts bool
	// Done is called after each file of kernels that is compiled, or was before: how many there are by now,
	// of all. Never two calls at a time. It may be nil.
	Done func(n, all int)
}

// Precompile compiles the kernels of runners for an architecture, "sm_90" or [devicecode.ArchEmu] and the
// like, into the cache (see [devicecode.Options]), as many files at a time as there are processors. It does what
// [communicator.Precompile] does too. Then the first call of each collective does not wait for the compiler,
// some seconds on a GPU, and the machine needs none. Precompile needs no GPU: an image of a container can be
// filled, or a folder that many machines read. They need the same version of this module, and the same file
// of the compiler, or none: with another compiler a call compiles anew. So does a call whose kernel was left out,
// and any call under MSCCLGO_TRACE, which has kernels of its own.
//
// Errors: ErrInvalid for a kind, type or operation that does not exist, and a number of ranks below 1; as
// for [devicecode.Compile]; ErrSystem if the cache cannot be written, unless all is there.
func Precompile(ctx context.Context, arch string, o PrecompileOptions) error {
	units, err := o.units()
	if err != nil {
		return mscclgo.Errorf(mscclgo.ErrInvalid, "collective: precompile", "%w", err)
	}
	n, all := 0, len(units)+1
	done := func() {
		n++
		if o.Done != nil {
			o.Done(n, all)
		}
	}
	ctx = keep.Images(ctx)
	if err := compileAll(ctx, arch, units, done); err != nil {
		return err
	}
	if err := communicator.Precompile(ctx, arch); err != nil {
		return err
	}
	done()
	return nil
}

// units returns what is to be compiled.
func (o PrecompileOptions) units() (all []unit, err error) {
	kinds, types, ops, ranks := o.Kinds, o.Types, o.Ops, o.Ranks
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	if len(types) == 0 {
		types = []Type{F32, F16, BF16}
	}
	if len(ops) == 0 {
		ops = []Op{Sum}
	}
	if len(ranks) == 0 {
		ranks = []int{4, 8}
	}
	if least := slices.Min(ranks); least < 1 {
		return nil, fmt.Errorf("there is no group of %d ranks", least)
	}
	// Kinds that do not reduce look at the first of them only.
	if i := slices.IndexFunc(types, func(t Type) bool { return !t.valid() }); i >= 0 {
		return nil, fmt.Errorf("there is no element %v", types[i])
	}
	if i := slices.IndexFunc(ops, func(op Op) bool { return !op.valid() }); i >= 0 {
		return nil, fmt.Errorf("there is no %v", ops[i])
	}
	known := map[string]bool{}
	addOf := func(of func(n int) unit) {
		for _, n := range ranks {
			made := of(n)
			made.options = forRanks(made.options, n)
			if key := fmt.Sprintf("%s %q", made.file, made.options.Defines); !known[key] {
				known[key] = true
				all = append(all, made)
			}
		}
	}
	add := func(u unit) { addOf(func(int) unit { return u }) }
	for _, k := range kinds {
		calls, err := callsOf(k, types, ops)
		if err != nil {
			return nil, err
		}
		for _, c := range calls {
			for _, a := range k.spec().algorithms {
				if t := a.about(); t.between && !o.SeveralHosts || t.narrow && c.sumsGrow() > 1 {
					continue
				}
				add(c.unit(a.about()))
			}
		}
		switch k {
		case AllToAll, SendReceive, Gather, Scatter:
			for _, packet := range []string{"LL16", "LL128"} {
				addOf(func(n int) unit { return groupKernels(false, packet, packetSlotOf(uint64(n), 0)) })
				if o.SeveralHosts {
					add(groupKernels(true, packet, packetSlotOf(1, 1)))
				}
			}
		}
	}
	return all, nil
}

// callsOf returns a call of a kind for each type and operation that it is compiled for.
func callsOf(k Kind, types []Type, ops []Op) (calls []Call, err error) {
	if !k.Reduces() {
		types, ops = types[:1], ops[:1] // which make no difference
	}
	for _, t := range types {
		for _, op := range ops {
			c := Call{Kind: k, Type: t, Op: op}
			if err := c.checkNames(); err != nil {
				return nil, err
			}
			calls = append(calls, c)
		}
	}
	return calls, nil
}
