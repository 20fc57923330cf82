package devicecode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mscclgo/mscclgo"
	"github.com/mscclgo/mscclgo/internal/signature"
)

// cudaCompiler compiles for NVIDIA GPUs with NVRTC, a self-contained library, or with
// nvcc, which needs a C++ compiler. MSCCLGO_CUDA_COMPILER selects one; by default it is
// NVRTC if that is found, and nvcc otherwise.
type cudaCompiler struct{}

func newCUDACompiler() compiler { return cudaCompiler{} }

// cudaJob is a job with the compiler's options.
type cudaJob struct {
	job
	architecture int      // 90 for sm_90
	options      []string // of the compiler, without the architecture
}

// identify checks the job as well, since no compiler may be asked.
func (cudaCompiler) identify(j job) (string, error) {
	if _, err := cudaArchitecture(j); err != nil {
		return "", err
	}
	tool, err := findCUDATool(j.op)
	if errors.Is(err, mscclgo.ErrUnsupported) {
		return "", nil
	}
	return tool.identity, err
}

// cudaArchitecture returns 90 for sm_90.
func cudaArchitecture(j job) (int, error) {
	architecture, err := strconv.Atoi(strings.TrimPrefix(j.arch, "sm_"))
	if err != nil || architecture < 10 || architecture > 9999 {
		return 0, mscclgo.Errorf(mscclgo.ErrInvalid, j.op, "%q is not an architecture such as sm_90", j.arch)
	}
	return architecture, nil
}

func (cudaCompiler) prepare(ctx context.Context, j job) (prepared, error) {
	architecture, err := cudaArchitecture(j)
	if err != nil {
		return prepared{}, err
	}
	if bytes.IndexByte(j.source, 0) >= 0 {
		return prepared{}, mscclgo.Errorf(mscclgo.ErrInvalid, j.op, "the source has a zero byte")
	}
	tool, err := findCUDATool(j.op)
	if err != nil {
		return prepared{}, err
	}
	included, files, changes, err := includedText(j)
	if err != nil {
		return prepared{}, err
	}
	c := cudaJob{job: j, architecture: architecture}
	c.options = append([]string{"-std=c++17"}, j.options.Flags...)
	for _, d := range j.options.Defines {
		c.options = append(c.options, "-D"+d)
	}
	// The inputs have the files that are found in the folders, not the folders' names.
	inputs := fmt.Appendf(nil, "%q %q %q %q %x ", tool.identity, environment(), c.options, j.name, sha256.Sum256(j.source))
	for _, d := range slices.Concat(j.options.IncludeDirs, []string{j.include}, tool.includes) {
		c.options = append(c.options, "-I"+d)
	}
	build := func(ctx context.Context) ([]byte, error) { return c.build(ctx, tool) }
	return prepared{inputs: append(inputs, included...), included: files, variable: changes, build: build}, nil
}

// build makes the image, and behind it the description of the kernels' parameters, which
// the compiler knows only of code for the debugger. So the source is compiled once more for
// that. If it cannot be, launches are checked by sizes alone.
func (c cudaJob) build(ctx context.Context, tool cudaTool) ([]byte, error) {
	image, err := tool.compile(ctx, c)
	if err != nil {
		return nil, err
	}
	entry, err := cudaEntries(image)
	if err != nil {
		return image, nil // PTX for a newer GPU
	}
	c.options = append(slices.DeleteFunc(slices.Clone(c.options), func(option string) bool {
		return option == "-lineinfo" || option == "--generate-line-info" // exclude -G
	}), "-G")
	described, err := tool.compile(ctx, c)
	if ctx.Err() != nil {
		return nil, mscclgo.FromContext(ctx, c.op, "while the compiler was running")
	}
	if err != nil {
		return image, nil
	}
	return signature.Append(image, signatures(described, entry)), nil
}

// cudaEntries returns what reports whether a symbol is a kernel of a cubin.
func cudaEntries(image []byte) (func(name string) bool, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	const entry = 0x10 // of a symbol's st_other, STO_CUDA_ENTRY in cuda-gdb's sources
	names := map[string]bool{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Other&entry != 0 {
			names[s.Name] = true
		}
	}
	return func(name string) bool { return names[name] }, nil
}

// cudaTool is an installed compiler.
type cudaTool struct {
	identity string   // changes when the compiler is updated
	includes []string // the folders of CUDA's own headers, unless the compiler knows them
	compile  func(context.Context, cudaJob) ([]byte, error)
}

const cudaAdvice = "install NVIDIA's CUDA toolkit, or set CUDA_HOME to its folder or MSCCLGO_NVRTC to the folder of " +
	"libnvrtc.so (which the Python package nvidia-cuda-nvrtc has), or load an image that was compiled elsewhere"

func findCUDATool(op string) (cudaTool, error) {
	choice := os.Getenv("MSCCLGO_CUDA_COMPILER")
	var lacking []string
	if choice == "" || choice == "nvrtc" {
		tool, err := findNVRTC()
		if err == nil {
			return tool, nil
		}
		lacking = append(lacking, err.Error())
	}
	if choice == "nvcc" || choice == "" && os.Getenv("MSCCLGO_NVRTC") == "" { // one that is named is not replaced
		tool, err := findNVCC()
		if err == nil {
			return tool, nil
		}
		lacking = append(lacking, err.Error())
	}
	if lacking == nil {
		return cudaTool{}, mscclgo.Errorf(mscclgo.ErrInvalid, op, "MSCCLGO_CUDA_COMPILER is %q, not nvrtc or nvcc", choice)
	}
	return cudaTool{}, mscclgo.Errorf(mscclgo.ErrUnsupported, op, "no compiler for NVIDIA GPUs: %s; %s",
		strings.Join(lacking, "; "), cudaAdvice)
}

// toolkits returns the folders in which a CUDA toolkit may be.
func toolkits() []string {
	var dirs []string
	for _, variable := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if dir := os.Getenv(variable); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, "/usr/local/cuda")
}

// fileIdentity returns a text that changes when an update replaces the file.
func fileIdentity(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d", real, info.Size(), info.ModTime().UnixNano()), nil
}

// lineMarked returns the source after a line that makes the compiler use its name.
func (j job) lineMarked() []byte {
	return append(fmt.Appendf(nil, "#line 1 %q\n", j.name), j.source...)
}

var includeDirective = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include(?:_next)?[ \t]*(.*)$`)

// includedText returns the texts of all files that the source includes from the user's
// folders and the library's. It follows all directives, even ones that the preprocessor
// would skip: an extra text does no harm. CUDA's own headers are part of the compiler's
// identity. files has the files of the user's folders. changes reports whether the source or one of these
// is [variable].
func includedText(j job) (text []byte, files []dependency, changes bool, err error) {
	var all bytes.Buffer
	folders := append(slices.Clone(j.options.IncludeDirs), j.include)
	for _, list := range []string{"CPATH", "CPLUS_INCLUDE_PATH"} { // of nvcc's host compiler
		folders = append(folders, filepath.SplitList(os.Getenv(list))...)
	}
	changes = variable(j.source)
	seen := map[string]bool{}
	var follow func(name string, text []byte, from []string) error
	follow = func(name string, text []byte, from []string) error {
		for _, m := range includeDirective.FindAllSubmatch(text, -1) {
			what := m[1]
			end := -1
			if len(what) > 0 && what[0] == '<' {
				end = bytes.IndexByte(what[1:], '>')
			} else if len(what) > 0 && what[0] == '"' {
				end = bytes.IndexByte(what[1:], '"')
			}
			if end < 0 {
				return mscclgo.Errorf(mscclgo.ErrUnsupported, j.op,
					"%s has \"#include %s\": name the file itself, since the cache must know what is included", name, what)
			}
			search := folders
			if what[0] == '"' {
				search = append(slices.Clone(from), folders...)
			}
			for _, dir := range search {
				path := filepath.Join(dir, filepath.FromSlash(string(what[1:1+end])))
				text, err := os.ReadFile(path)
				if err != nil {
					continue // there is no such file, or the compiler reports what is wrong
				}
				if !seen[path] {
					seen[path] = true
					if path, err := filepath.Abs(path); err == nil && dir != j.include {
						files = append(files, dependency{path: path})
						changes = changes || variable(text)
					}
					fmt.Fprintf(&all, "%d ", len(text))
					all.Write(text)
					if err := follow(path, text, []string{filepath.Dir(path)}); err != nil {
						return err
					}
				}
				break
			}
		}
		return nil
	}
	err = follow(j.name, j.source, nil)
	return all.Bytes(), files, changes, err
}
