package devicecode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/gpu"
	"github.com/mscclgo/mscclgo/internal/explore"
	"github.com/mscclgo/mscclgo/internal/race"
)

// Options are the options of [Compile] and [Load]. The zero value is ready to use.
type Options struct {
	// Defines are macros, "NAME" or "NAME=value".
	Defines []string
	// IncludeDirs are folders that are searched for #include before the library's
	// headers.
	IncludeDirs []string
	// Check has kernels check what they do with the library: ranges of memory channels,
	// grids of groups, blocks of packets, as they always do on emulated devices. A check
	// that fails ends the kernel, and the communicator's error says what was wrong, with
	// block, thread and the line of the kernel's call. Kernels get slower.
	Check bool
	// Trace has kernels write events for the timeline of the communicator; see
	// communicator.Options.Trace. The variable MSCCLGO_TRACE sets it too, unless it is
	// empty. Kernels get slower.
	Trace bool
	// Flags are further flags for the compiler of the architecture.
	Flags []string
	// CacheDir is the cache folder. The default is $MSCCLGO_CACHE, or mscclgo in the
	// user's cache folder. If it cannot be written, sources are compiled each time.
	// What another process compiles is waited for, two minutes at most, and then compiled
	// here too: that process may be stopped.
	// Files in it that belong to other users, root aside, are not read.
	CacheDir string
}

// checkWords returns an error if an option has a text that no command can have. A compiler
// would take what is behind an empty macro or folder for it.
func (o *Options) checkWords() error {
	for what, texts := range map[string][]string{"macro": o.Defines, "folder for #include": o.IncludeDirs, "flag": o.Flags} {
		for _, text := range texts {
			if text == "" || strings.Contains(text, "\x00") {
				return fmt.Errorf("a %s, %q, is empty or has a zero byte", what, text)
			}
		}
	}
	return nil
}

// EnvTrace is the variable that sets [Options].Trace, and names the file of the timeline for
// package communicator.
const EnvTrace = "MSCCLGO_TRACE"

// ArchEmu is the architecture of emulated devices.
const ArchEmu = "emu"

// Load compiles a source for a device and loads it. It is [Compile] followed by
// [gpu.Device.LoadModule]. The caller closes the module.
//
// Errors: as for Compile and LoadModule; ErrInvalid if the device is nil.
func Load(ctx context.Context, dev *gpu.Device, name string, source []byte, o Options) (*gpu.Module, error) {
	if dev == nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, "devicecode: load "+name, "the device is nil")
	}
	compiled := dev.Internal().BeginBusy("compiles "+name, true)
	image, err := Compile(ctx, dev.Info().Arch, name, source, o)
	compiled()
	if err != nil {
		return nil, err
	}
	return dev.LoadModule(image)
}

// Compile returns an image for devices of the architecture: [ArchEmu], or "sm_90" and
// the like. name is the source's file name in the compiler's messages; #include "..."
// searches only IncludeDirs and the library's headers. If the user has compiled the same
// before, in any process, the image comes from the cache: with this compiler if one is
// installed, and otherwise with any. The cache may be read-only then. An image that came with the
// installation is taken first; see MSCCLGO_IMAGES.
//
// Behind the image is a description of the kernels' parameters, by which [gpu.Kernel.Launch]
// checks arguments. A program that reads the image without package gpu can ignore it.
//
// Errors: ErrInvalid with the compiler's message, file and line if the source is wrong,
// and if a macro, a folder or a flag is empty; ErrUnsupported if no compiler for the
// architecture is installed; ErrSystem if the compiler or the cache folder fails; ErrTimeout
// or ErrAborted if ctx ends, which also ends the compiler.
func Compile(ctx context.Context, arch, name string, source []byte, o Options) ([]byte, error) {
	op := fmt.Sprintf("devicecode: compile %s for %s", name, arch)
	if o.Check {
		o.Defines = append(slices.Clone(o.Defines), "MSCCLGO_CHECK")
	}
	if o.Trace || os.Getenv(EnvTrace) != "" {
		o.Defines = append(slices.Clone(o.Defines), "MSCCLGO_TRACE")
	}
	if strings.ContainsAny(name, "\n\r\x00") {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "the name %q has a line break or a zero byte", name)
	}
	if err := o.checkWords(); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "%w", err)
	}
	source = bytes.TrimPrefix(source, []byte("\ufeff")) // which compilers skip in a file's first line alone
	c, err := compilerFor(op, arch)
	if err != nil {
		return nil, err
	}
	cache, err := openCache(ctx, op, o.CacheDir)
	if err != nil {
		return nil, err
	}
	headers, err := headerFiles()
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, op, "cannot read the embedded headers: %w", err)
	}
	j := job{op: op, arch: arch, name: name, source: source, options: o, race: arch == ArchEmu && (race.Enabled() || explore.Current() != nil)}
	identity, err := c.identify(j)
	if err != nil {
		return nil, err
	}
	manifest := manifestKey(j, contentName(headers))
	if image, ok := shipped(ctx, manifest); ok {
		return image, nil
	}
	where := search{dirs: absolutes(o.IncludeDirs), library: slices.Collect(maps.Keys(headers))}
	if image, ok := cache.recall(manifest, identity, where); ok {
		return image, ship(ctx, j, manifest, image)
	}
	defer explore.Slow()() // a rank that compiles has the turn meanwhile
	if cache.dir != "" {
		// The ranks of a group compile the same at the same time, and there may be hundreds.
		unlock, err := cache.lock(ctx, op, manifest)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if image, ok := cache.recall(manifest, identity, where); ok {
			return image, ship(ctx, j, manifest, image)
		}
	}
	start := time.Now()
	j.work = &workspace{op: op}
	defer j.work.close()
	if j.include, err = cache.includes(ctx, op, j.work, headers); err != nil {
		return nil, err
	}
	p, err := c.prepare(ctx, j)
	if err != nil {
		return nil, err
	}
	if p.variable {
		return p.build(ctx)
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%s %d ", arch, len(p.inputs))
	digest.Write(p.inputs)
	key := arch + "-" + hex.EncodeToString(digest.Sum(nil))
	image, err := cache.image(ctx, op, key, p.build)
	if err == nil {
		err = kept(ctx, op, cache.remember(manifest, identity, key, source, where, p.included, start))
	}
	if err == nil {
		err = ship(ctx, j, manifest, image)
	}
	if err != nil {
		return nil, err
	}
	return image, nil
}

// job is a source to compile.
type job struct {
	op      string // for errors
	arch    string
	name    string
	source  []byte
	options Options
	include string // the folder of the library's headers
	race    bool   // for the race finder
	work    *workspace
}

// compiler compiles for some architectures.
type compiler interface {
	// identify returns a text that changes when another compiler is chosen or the
	// installed one is updated, or "" if none is installed. It does not run it.
	identify(j job) (string, error)
	prepare(ctx context.Context, j job) (prepared, error)
}

// prepared is a source that can be compiled.
type prepared struct {
	// inputs is all that the image depends on: the compiler and its version, the flags,
	// and the text of the source and of all that it includes. Equal inputs result in
	// equal images.
	inputs []byte
	// included has the files that the source includes, without the library's headers.
	included []dependency
	// variable is set if the image may also depend on what is not in inputs.
	variable bool
	build    func(context.Context) ([]byte, error) // makes the image
}

// compilerFor returns the compiler for an architecture.
func compilerFor(op, arch string) (compiler, error) {
	switch {
	case arch == ArchEmu:
		return emuCompiler{}, nil
	case strings.HasPrefix(arch, "sm_"):
		return newCUDACompiler(), nil
	}
	return nil, mscclgo.Errorf(mscclgo.ErrInvalid, op, "unknown architecture %q: want %q or an NVIDIA GPU's, such as \"sm_90\"", arch, ArchEmu)
}

// headerFiles returns the texts of the library's headers by name.
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

// contentName returns a name for a set of files that depends on their contents.
func contentName(files map[string][]byte) string {
	digest := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(digest, "%q %d ", name, len(files[name]))
		digest.Write(files[name])
	}
	return hex.EncodeToString(digest.Sum(nil)[:16])
}
