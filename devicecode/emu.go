package devicecode

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/emuimage"
)

// emuCompiler compiles for emulated devices with the system's C++ compiler. It
// preprocesses the source with the headers of mscclgo/emu instead of CUDA's, instruments
// the text, and compiles it to a shared object.
type emuCompiler struct{}

// compileFlags set the language and the code generation. Kernels and variables are
// hidden, so that two modules can use the same names; the device finds them in the
// module's table and in the symbol table. Floating-point contraction is off, so that
// sums are the same on every machine.
var compileFlags = []string{
	"-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions",
	"-fstack-clash-protection", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-unknown-pragmas",
}

var linkFlags = []string{"-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--as-needed"}

func (emuCompiler) prepare(ctx context.Context, j job) ([]byte, func(context.Context) ([]byte, error), error) {
	cxx, identity, err := findCXX(ctx, j.work)
	if err != nil {
		return nil, nil, err
	}
	flags := slices.Concat(compileFlags, j.options.Flags)
	if !strings.Contains(identity, "clang") {
		flags = append(flags, "-fno-gnu-unique") // unique symbols, which clang does not make, prevent unloading
	}
	pre, err := preprocess(ctx, j, cxx, flags)
	if err != nil {
		return nil, nil, err
	}
	text, err := instrument(pre)
	if err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrInvalid, j.op, "%w", err)
	}
	flags = append(flags, linkFlags...)
	inputs := fmt.Appendf(nil, "%q %q %q ", cxx, identity, flags)
	build := func(ctx context.Context) ([]byte, error) {
		return buildEmu(ctx, j, cxx, flags, text)
	}
	return append(inputs, text...), build, nil
}

// findCXX returns the C++ compiler's command, and its path and version.
func findCXX(ctx context.Context, w *workspace) (cxx []string, identity string, err error) {
	candidates := [][]string{{"g++"}, {"c++"}, {"clang++"}}
	if set := strings.Fields(os.Getenv("CXX")); len(set) > 0 {
		candidates = [][]string{set}
	}
	for _, cxx := range candidates {
		path, err := exec.LookPath(cxx[0])
		if err != nil {
			continue
		}
		out, err := w.run(ctx, slices.Concat(cxx, []string{"--version"}), nil)
		if err != nil {
			return nil, "", err
		}
		return cxx, path + " " + string(out), nil
	}
	return nil, "", mscclgo.Errorf(mscclgo.ErrUnsupported, w.op,
		"kernels for emulated devices need a C++ compiler, and none of %v is installed; install g++ (apt-get install g++) or set CXX", candidates)
}

// preprocess runs the preprocessor on the source. The result does not depend on the
// temporary folder.
func preprocess(ctx context.Context, j job, cxx, flags []string) ([]byte, error) {
	dir, err := j.work.dir()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "source.cu")
	if err := os.WriteFile(file, j.lineMarked(), 0o600); err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "cannot write a temporary file: %w", err)
	}
	args := slices.Concat(cxx, flags)
	for _, d := range j.options.Defines {
		args = append(args, "-D"+d)
	}
	for _, d := range j.options.IncludeDirs {
		args = append(args, "-I"+d)
	}
	args = append(args, "-I"+j.include, "-I"+filepath.Join(j.include, "mscclgo", "emu", "cuda"),
		"-include", "mscclgo/emu/prelude.h", "-x", "c++", "-E", file)
	out, err := j.work.run(ctx, args, nil)
	name := strconv.Quote(j.name)
	out = bytes.ReplaceAll(out, []byte(file), []byte(name[1:len(name)-1]))
	return bytes.ReplaceAll(out, []byte(dir+"/"), nil), err
}

func buildEmu(ctx context.Context, j job, cxx, flags []string, text []byte) ([]byte, error) {
	dir, err := j.work.dir()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "module.so")
	args := slices.Concat(cxx, flags)
	if _, err := j.work.run(ctx, append(args, "-x", "c++-cpp-output", "-", "-o", file), text); err != nil {
		return nil, err
	}
	image, err := os.ReadFile(file)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "%s wrote no module: %w", cxx[0], err)
	}
	return emuimage.Seal(image), nil
}
