package devicecode

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/emuimage"
	"github.com/mscclgo/mscclgo/internal/signature"
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
	"-std=gnu++17", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-exceptions",
	"-fstack-clash-protection", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-unknown-pragmas",
}

// briefFlags leave out passes of g++ that take a fifth of its time and make no kernel faster.
var briefFlags = []string{"-fno-tree-ccp", "-fno-tree-dominator-opts", "-fno-tree-dse", "-fno-tree-pta"}

// describeFlags have the compiler describe the kernels' parameters for debuggers. Without
// the rest of what debuggers use that takes no time. clang knows the first only.
var describeFlags = []string{"-g", "-fno-var-tracking", "-gno-statement-frontiers"}

// raceFlags are for modules that the race finder watches: the compiler calls emu/race.h
// before each access. The library that these calls are made for is not linked.
var raceFlags = []string{"-fsanitize=thread", "-Wno-tsan", "-DMSCCLGO_EMU_RACE"}

// raceFlagsOf are g++'s own, and clang's: volatile accesses are told from others, and the
// places of variables are told as DWARF 4 has them.
var raceFlagsOf = map[bool][]string{
	false: {"--param", "tsan-distinguish-volatile=1"},
	true:  {"-mllvm", "-tsan-distinguish-volatile=1", "-gdwarf-4", "-Wno-unused-command-line-argument"}, // when it links
}

// stepFlags have the compiler call runtime.h in each basic block. So a loop that polls a volatile word
// lets other threads run, on which it waits.
var stepFlags = []string{"-fsanitize-coverage=trace-pc"}

// noSteps are the attributes of functions that do not have these calls, of g++ and of clang.
var noSteps = map[bool]string{
	false: "__attribute__((no_sanitize_coverage))",
	true:  `__attribute__((no_sanitize("coverage")))`,
}

// raceLinkFlags have functions of the C library that access memory do so too.
var raceLinkFlags = []string{"-fno-sanitize=thread", "-Wl,-Bsymbolic", "-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset"}

var linkFlags = []string{"-shared", "-Wl,--compress-debug-sections=zlib", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--as-needed"}

// identify names the files of the compiler's command, such as ccache and g++.
func (emuCompiler) identify(job) (string, error) {
	for _, cxx := range candidatesCXX() {
		if _, err := exec.LookPath(cxx[0]); err != nil {
			continue
		}
		identity := fmt.Sprintf("%q", cxx)
		for _, word := range cxx {
			path, err := exec.LookPath(word)
			if err != nil {
				continue // an option
			}
			file, err := fileIdentity(path)
			if err != nil {
				return "", nil // it has just been removed
			}
			identity += " " + file
		}
		return identity, nil
	}
	return "", nil
}

func (emuCompiler) prepare(ctx context.Context, j job) (prepared, error) {
	cxx, identity, err := findCXX(ctx, j.work)
	if err != nil {
		return prepared{}, err
	}
	clang := strings.Contains(identity, "clang")
	describe := describeFlags
	if clang {
		describe = describe[:1]
	}
	flags := slices.Concat(compileFlags, describe, j.options.Flags)
	if j.race {
		flags = slices.Concat(flags, raceFlags, raceFlagsOf[clang])
	}
	if !clang {
		flags = append(flags, briefFlags...)
		flags = append(flags, "-fno-gnu-unique") // unique symbols, which clang does not make, prevent unloading
	}
	pre, included, err := preprocess(ctx, j, cxx, flags)
	if err != nil {
		return prepared{}, err
	}
	outside := ""
	if !j.race && mayPoll(j.source, included) {
		flags = slices.Concat(flags, stepFlags)
		outside = noSteps[clang]
	}
	text, kernels, err := instrument(pre, outside)
	if err != nil {
		return prepared{}, mscclgo.Errorf(mscclgo.ErrInvalid, j.op, "%w", err)
	}
	inputs := fmt.Appendf(nil, "%q %q %q %q ", cxx, identity, flags, linkFlags)
	build := func(ctx context.Context) ([]byte, error) {
		return buildEmu(ctx, j, cxx, flags, text, kernels)
	}
	return prepared{inputs: append(inputs, text...), included: included, build: build}, nil
}

// mayPoll reports whether the user's source, or a file that it includes, has a volatile word.
func mayPoll(source []byte, included []dependency) bool {
	polls := bytes.Contains(source, []byte("volatile"))
	for _, file := range included {
		if !polls && !file.system {
			text, _ := os.ReadFile(file.path) // it has just been read
			polls = bytes.Contains(text, []byte("volatile"))
		}
	}
	return polls
}

// candidatesCXX returns the commands that may be the C++ compiler.
func candidatesCXX() [][]string {
	if set := strings.Fields(os.Getenv("CXX")); len(set) > 0 {
		return [][]string{set}
	}
	return [][]string{{"g++"}, {"c++"}, {"clang++"}}
}

// findCXX returns the C++ compiler's command, and its path and version.
func findCXX(ctx context.Context, w *workspace) (cxx []string, identity string, err error) {
	candidates := candidatesCXX()
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
// temporary folder. included has the files that it read.
func preprocess(ctx context.Context, j job, cxx, flags []string) (text []byte, included []dependency, err error) {
	dir, err := j.work.dir()
	if err != nil {
		return nil, nil, err
	}
	file := filepath.Join(dir, "source.cu")
	if err := os.WriteFile(file, j.lineMarked(), 0o600); err != nil {
		return nil, nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "cannot write a temporary file: %w", err)
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
	if err != nil {
		return nil, nil, err
	}
	included = readFiles(out, file, j.name, j.include)
	name := strconv.Quote(j.name)
	out = bytes.ReplaceAll(out, []byte(file), []byte(name[1:len(name)-1]))
	return bytes.ReplaceAll(out, []byte(dir+"/"), nil), included, nil
}

// lineMarker is where the preprocessor says which file the text below is from. Among the
// flags behind the name, 3 is for files of the system.
var lineMarker = regexp.MustCompile(`(?m)^# \d+ ("(?:[^"\\\n]|\\.)*")((?: \d)*)$`)

// readFiles returns the files that preprocessed text is from, without the source, whose
// name may be another as well, and what is below a folder.
func readFiles(text []byte, source, name, without string) []dependency {
	var files []dependency
	seen := map[string]bool{}
	for _, m := range lineMarker.FindAllSubmatch(text, -1) {
		path, err := strconv.Unquote(string(m[1]))
		if err != nil || path == source || path == name || path == "" || path[0] == '<' {
			continue
		}
		if path, err = filepath.Abs(path); err != nil || seen[path] || strings.HasPrefix(path, without+"/") {
			continue
		}
		seen[path] = true
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue // where the compiler was run
		}
		files = append(files, dependency{path: path, system: bytes.Contains(m[2], []byte("3"))})
	}
	return files
}

// buildEmu compiles to an object, reads the kernels' parameters from it, and links it. The
// module has the debuggers' information, by which the device names the lines of faults.
func buildEmu(ctx context.Context, j job, cxx, flags []string, text []byte, kernels []string) ([]byte, error) {
	dir, err := j.work.dir()
	if err != nil {
		return nil, err
	}
	object, module := filepath.Join(dir, "module.o"), filepath.Join(dir, "module.so")
	// The image does not depend on where the headers and the process are.
	flags = append(slices.Clone(flags), "-fdebug-prefix-map="+strings.TrimPrefix(j.include, dir+"/")+"=/include")
	if here, err := os.Getwd(); err == nil && here != "/" {
		flags = append(flags, "-fdebug-prefix-map="+here+"=.")
	}
	args := slices.Concat(cxx, flags, []string{"-x", "c++-cpp-output", "-", "-c", "-o", object})
	if _, err := j.work.run(ctx, args, text); err != nil {
		return nil, err
	}
	compiled, err := os.ReadFile(object)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "%s wrote no object: %w", cxx[0], err)
	}
	args = slices.Concat(cxx, flags, linkFlags)
	if j.race {
		args = append(args, raceLinkFlags...)
	}
	if _, err := j.work.run(ctx, append(args, object, "-o", module), nil); err != nil {
		return nil, err
	}
	image, err := os.ReadFile(module)
	if err != nil {
		return nil, mscclgo.Errorf(mscclgo.ErrSystem, j.op, "%s wrote no module: %w", cxx[0], err)
	}
	entry := func(name string) bool { return slices.Contains(kernels, name) }
	return signature.Append(emuimage.Seal(image), signatures(compiled, entry)), nil
}
