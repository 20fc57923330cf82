package devicecode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/mscclgo/mscclgo"
)

// Options adjust a compilation. The zero value is ready to use.
type Options struct {
	Defines     []string // macros, "NAME" or "NAME=value"
	IncludeDirs []string // folders searched for #include, before the library's
	Flags       []string // further flags, as the architecture's compiler takes them
	CacheDir    string   // where images are kept; "" is $MSCCLGO_CACHE or mscclgo in the user's cache folder
}

// ArchEmu is the architecture of emulated devices.
const ArchEmu = "emu"

// Compile makes an image that a device of that architecture loads: "emu", or
// "sm_90" and the like. name stands for the source in the compiler's messages;
// #include "..." searches only IncludeDirs and the library's headers. Compiling
// the same again, in any process of the user, gives the image from the cache.
//
// Errors: ErrInvalid with the compiler's message, file and line where the source
// is wrong; ErrUnsupported where no compiler is installed, or none for that
// architecture; ErrSystem where the compiler or the cache folder fails; the
// context's when it ends, which ends the compiler too.
func Compile(ctx context.Context, arch, name string, source []byte, o Options) ([]byte, error) {
	op := fmt.Sprintf("devicecode: compile %s for %s", name, arch)
	if strings.ContainsAny(name, "\n\r\x00") {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the name is not one line")
	}
	c, err := compilerFor(op, arch)
	if err != nil {
		return nil, err
	}
	cache, err := openCache(op, o.CacheDir)
	if err != nil {
		return nil, err
	}
	include, err := cache.headers(ctx, op)
	if err != nil {
		return nil, err
	}
	j := job{op: op, arch: arch, name: name, source: source, options: o, include: include}
	inputs, build, err := c.prepare(ctx, j)
	if err != nil {
		return nil, err
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%s %d ", arch, len(inputs))
	digest.Write(inputs)
	return cache.image(ctx, op, arch+"-"+hex.EncodeToString(digest.Sum(nil)), build)
}

// job is one source to be compiled.
type job struct {
	op      string // for errors
	arch    string
	name    string
	source  []byte
	options Options
	include string // the folder with the library's headers
}

// compiler makes images for some architectures.
type compiler interface {
	// prepare finds what the image depends on: the compiler and its version, the
	// flags, and the text of the source and of all that it includes. Equal inputs
	// give equal images. build then makes the image.
	prepare(ctx context.Context, j job) (inputs []byte, build func(context.Context) ([]byte, error), err error)
}

// compilerFor picks the compiler for an architecture.
func compilerFor(op, arch string) (compiler, error) {
	switch {
	case arch == ArchEmu:
		return emuCompiler{}, nil
	case strings.HasPrefix(arch, "sm_"):
		return newCUDACompiler(), nil
	}
	return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "there is no architecture %q; it is %q or that of an NVIDIA GPU, such as \"sm_90\"", arch, ArchEmu)
}

// headerFiles lists the library's headers and their texts.
func headerFiles() (map[string][]byte, error) {
	files := map[string][]byte{}
	headers := Headers()
	err := fs.WalkDir(headers, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = fs.ReadFile(headers, path)
		return err
	})
	return files, err
}

// contentName names a set of files by what is in them.
func contentName(files map[string][]byte) string {
	digest := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(digest, "%q %d ", name, len(files[name]))
		digest.Write(files[name])
	}
	return hex.EncodeToString(digest.Sum(nil)[:16])
}
