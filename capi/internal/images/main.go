// Images compiles for emulated devices the images of the Python package's wheel: the kernels of
// collectives among up to four ranks that reduce fp32, the kernels by which bench checks them, and the
// named sources.
//
//	go run ./capi/internal/images FOLDER [SOURCE.cu...]
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mscclgo/mscclgo/collective"
	"github.com/mscclgo/mscclgo/devicecode"
	"github.com/mscclgo/mscclgo/internal/keep"
	"github.com/mscclgo/mscclgo/internal/test/elements"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder string, sources []string) error {
	ctx := keep.Shipped(context.Background(), folder)
	for _, file := range sources {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if _, err := devicecode.Compile(ctx, devicecode.ArchEmu, filepath.Base(file), source, devicecode.Options{}); err != nil {
			return err
		}
	}
	typ, err := elements.Of(collective.F32)
	if err != nil {
		return err
	}
	if err := elements.Compile(ctx, devicecode.ArchEmu, typ); err != nil {
		return err
	}
	return collective.Precompile(ctx, devicecode.ArchEmu, collective.PrecompileOptions{Types: []collective.Type{collective.F32}, Ranks: []int{4}})
}
