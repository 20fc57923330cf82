package main

import (
	"fmt"
	"strings"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/internal/precompile"
)

// runPrecompile fills the cache with kernels of the collectives.
func runPrecompile(c *call) error {
	var names precompile.Names
	c.flags.StringVar(&names.Archs, "arch", "", "the `architectures` to compile for, such as emu,sm_90; by default for the GPUs here")
	c.flags.StringVar(&names.Ranks, "n", "4,8", "`sizes` of groups: kernels for up to 4 ranks serve all these, those for up to 8 the sizes up to 72,\nand there is a third kind for more")
	c.flags.StringVar(&names.Types, "d", "f32,f16,bf16", fmt.Sprintf("element `types` of reductions, of %v", collective.Types()))
	c.flags.StringVar(&names.Ops, "o", "sum", fmt.Sprintf("`operations` of reductions, of %v", collective.Ops()))
	hosts := c.flags.Bool("hosts", false, "also what groups on several hosts need")
	if err := c.parse(); err != nil {
		return err
	}
	names.Kinds = strings.Join(c.flags.Args(), ",")
	archs, o, err := names.Parse()
	if err != nil {
		return &usageError{err.Error()}
	}
	o.SeveralHosts = *hosts
	ctx, end := interruptible(longestCompilation)
	defer end()
	for _, arch := range archs {
		files := 0
		o.Done = func(n, all int) {
			files = n
			if n%10 == 0 && n < all {
				fmt.Fprintf(c.stderr, "%s: %d of %d files of kernels\n", arch, n, all)
			}
		}
		if err := collective.Precompile(ctx, arch, o); err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "%s: %d files of kernels are in the cache\n", arch, files)
	}
	return nil
}
